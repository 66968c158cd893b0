"""Measure GPU targets: models × batches × systems, and the paper's figures.

    python -m benchmarks.gpu --output benchmarks/results
    python -m benchmarks.gpu --quick --output benchmarks/results      # < 8 minutes
    python -m benchmarks.gpu --install
    python -m benchmarks.gpu first-run --plan

Each library runs in a process of its own; what is not installed is left out, and said
so. Answers are compared with exact ones before anything is timed: a bit that differs in
skforge's exact mode ends the run with status 1, after everything is written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from harness import Batches, Names, Output, Rounds, numbers
from machine import in_words, machine
from models import cache_folder, models, names
from synthetic import STAND_INS

from benchmarks.gpu.bench import PEERS, Group, Limits, bench, participants
from benchmarks.gpu.designs import FEW
from benchmarks.gpu.plots import write
from benchmarks.gpu.tables import to_markdown

BATCHES = "1,8,64,512,1024,4096,8192,16384,65536,262144,1048576"
QUICK_BATCHES = "1,64,512,1024,4096,8192,65536,1048576"
QUICK = ("airline.json", "lightgbm/NYC_taxi.txt", "synthetic-300x64-7")
QUICK_MINUTES = 7.0

#: The paper's random models: trees by features, one of its depths.
FAMILY = tuple(
    f"synthetic-{trees}x{features}-7"
    for trees in (100, 300, 500, 1000)
    for features in (8, 64, 256, 1024)
)

INSTALL = """\
# skforge, its CUDA extra, the models' libraries and the plots; driver 580 or later:
pip install -e '.[bench,cuda13]'
# nvForest, from NVIDIA's index if PyPI's does not install; cuML has the same kernels
# under its older name, and either will do:
pip install --extra-index-url=https://pypi.nvidia.com nvforest-cu13 treelite
pip install --extra-index-url=https://pypi.nvidia.com cuml-cu13
# XGBoost's wheel has its CUDA kernels; XGBoost's copy of NCCL is not needed.
# Hummingbird pins an onnx and reads no model of XGBoost 3.1: an environment of its own.
python -m venv {folder}/environments/hummingbird-gpu
{folder}/environments/hummingbird-gpu/bin/pip install hummingbird-ml==0.4.12 torch \\
  cupy-cuda13x joblib typer numpy scikit-learn=={sklearn} lightgbm 'xgboost>=3.0,<3.1'
# Models that are trained for the tables are kept in {folder}/models; shared ones are
# looked for in ../shared/models, or where SKFORGE_MODELS says.
"""


def main(
    parts: Names = None,
    batches: Batches = "",
    schedules: Annotated[
        str, typer.Option(help="all, few or none besides the default schedules.")
    ] = "all",
    peers: Annotated[
        str, typer.Option(help="Only these, by commas; none for none.")
    ] = "",
    family: Annotated[bool, typer.Option(help="The paper's random models.")] = False,
    quick: Annotated[bool, typer.Option(help="Three models; < 8 minutes.")] = False,
    minutes: Annotated[
        float, typer.Option(help="After so long no more is begun.")
    ] = 1e6,
    prepare: Annotated[
        float, typer.Option(help="Seconds a system may take to load a model.")
    ] = 120.0,
    rounds: Rounds = 7,
    target: Annotated[
        str, typer.Option(help="cuda, hip; emulated only tries the harness out.")
    ] = "cuda",
    output: Output = None,
    install: Annotated[bool, typer.Option(help="Print what to install.")] = False,
) -> None:
    """Measure and print; write after each model."""
    if install:
        print(install_lines())
        return
    if target not in ("cuda", "hip", "emulated"):
        raise typer.BadParameter("target is cuda, hip or emulated")
    end = monotonic() + 60 * min(minutes, QUICK_MINUTES if quick else minutes)
    limits = Limits(rounds=rounds, prepare=prepare, end=end)
    if quick:
        limits = Limits(3, 0.005, 0.5, prepare=40.0, end=end)
        schedules = "few" if schedules == "all" else schedules
    batches = batches or (QUICK_BATCHES if quick else BATCHES)
    sizes = numbers(batches)
    wanted = list(parts or (QUICK if quick else [*names(), *STAND_INS]))
    wanted += FAMILY if family else ()
    designs = {"all": None, "few": FEW, "none": ()}[schedules]
    results, status = run(wanted, sizes, designs, _peers(peers), target, limits, output)
    print(to_markdown(results, machine()))
    sys.exit(status)


def run(
    wanted: Sequence[str],
    sizes: Sequence[int],
    designs: Sequence[str] | None,
    peers: Sequence[str] | None,
    target: str,
    limits: Limits,
    output: Path | None,
) -> tuple[list[dict[str, Any]], int]:
    """Return what was measured, and 1 if a bit differed."""
    facts, threads = machine(), len(os.sched_getaffinity(0))
    print(in_words(facts))
    results: list[dict[str, Any]] = []
    group = Group()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        for model in models(list(wanted)):
            if monotonic() > limits.end:
                print(f"{model.name} is left out: no time is left")
                continue
            print(f"{model.name} ({model.rows_from})", flush=True)
            modes = ("fast", "reproducible")
            who = participants(target, model, designs, modes, threads, peers)
            results.append(bench(model, group, who, sizes, limits))
            if output is not None:
                write(results, facts, output)
    finally:
        group.close()
    return results, int(any(map(differs, results)))


def differs(result: dict[str, Any]) -> bool:
    """Tell whether one of skforge's exact answers is not exact, and say so."""
    wrong = [
        s["system"]
        for s in result["systems"]
        if s["reason"] is None
        and not s["same_bits"]
        and s["system"] not in ("skforge fast", "skforge reproducible")
        and s["system"] not in [name for name, *_ in PEERS]
    ]
    for name in wrong:
        print(f"{result['model']}: {name} differs from the exact answer")
    return bool(wrong)


def install_lines() -> str:
    import sklearn

    return INSTALL.format(folder=cache_folder(), sklearn=sklearn.__version__)


def _peers(text: str) -> list[str] | None:
    if text == "none":
        return []
    return [name.strip() for name in text.split(",")] if text else None


if __name__ == "__main__":
    if sys.argv[1:2] == ["first-run"]:
        from benchmarks.gpu import first_run

        del sys.argv[1]
        typer.run(first_run.main)
    else:
        typer.run(main)
