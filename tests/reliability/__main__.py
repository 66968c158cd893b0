"""Run the families and write the table: ``python -m tests.reliability``.

    python -m tests.reliability --quick                  # minutes
    python -m tests.reliability --output benchmarks/results   # an hour or two
    python -m tests.reliability --only fuzz --output benchmarks/results --merge
    python -m tests.reliability planted                  # faults that comparisons find
    python -m tests.reliability mutants                  # faults that tests find

Results are written after each family, so that a run that is ended keeps them. The exit
status is 1 if anything was lost.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness import Merge, Output, parts, publish, stored
from benchmarks.machine import machine
from benchmarks.reliability import page
from tests.reliability import (
    faults_files,
    faults_machine,
    fuzz,
    fuzz_drawn,
    processes,
    profiles,
    sanitize,
    soak,
)
from tests.reliability.rows import Row

Family = Callable[[Path, bool], list[Row]]

WORKERS = min(4, len(os.sched_getaffinity(0)))
MODEL = processes.ROOT / "tests/data/xgboost/3.2.0-softprob.ubj"


def _files(folder: Path, quick: bool) -> list[Row]:
    bits = (0,) if quick else (0, 3, 6)
    return [
        faults_files.killed_while_saving(folder, 30 if quick else 500),
        *faults_files.damaged_everywhere(folder, bits, 20 if quick else 1),
        faults_files.disk_full_while_saving(folder, 400 if quick else 13),
    ]


def _machine(folder: Path, quick: bool) -> list[Row]:
    alone = faults_machine.no_libgomp(folder, MODEL)
    if quick:
        return [alone, faults_machine.older_cpu(folder, ("Haswell",))]
    return [alone, faults_machine.older_cpu(folder)]


def _sanitize(folder: Path, quick: bool) -> list[Row]:
    few = ("lightgbm of categories as numbers", "forest of three")
    sizes = (300, 40, few) if quick else (5_000, 500)
    return sanitize.run(folder, *sizes)


#: What tries a family, in a folder of its own; a few of each, if it is to be quick.
FAMILIES: dict[str, Family] = {
    "soak": lambda folder, quick: soak.run(20_000 if quick else 1_000_000, folder),
    "files": _files,
    "machine": _machine,
    "profiles": lambda folder, quick: profiles.run(folder, 9 if quick else 200),
    "fuzz": lambda folder, quick: fuzz.run(
        2_000 if quick else 600_000, folder / "seeds", WORKERS
    ),
    "models": lambda _, quick: fuzz_drawn.models(60 if quick else 3_000, WORKERS),
    "pipelines": lambda _, quick: fuzz_drawn.pipelines(60 if quick else 3_000, WORKERS),
    "sanitize": _sanitize,
    **{
        kind: lambda _, quick, kind=kind, n=n: fuzz_drawn.pipelines(
            60 if quick else n, WORKERS, kind=kind
        )
        for kind, n in {
            "sweep": 3_000,
            "sparse": 1_000,
            "categories": 1_000,
            "parameters": 4_000,
        }.items()
    },
}


def main(
    quick: Annotated[bool, typer.Option(help="A few of each, in minutes.")] = False,
    only: Annotated[
        str, typer.Option(help=f"Of {', '.join(FAMILIES)}, by commas.")
    ] = "",
    output: Output = None,
    merge: Merge = False,
) -> None:
    """Try what can go wrong, many times, and count what survives."""
    wanted = parts(only)
    if unknown := [name for name in wanted if name not in FAMILIES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(FAMILIES)}.")
    document = stored(output, "reliability") if merge and output else {}
    with tempfile.TemporaryDirectory(prefix="skforge-reliability-") as folder:
        os.environ["SKFORGE_CACHE_DIR"] = str(Path(folder) / "cache")
        for name in wanted or FAMILIES:
            start = time.monotonic()
            place = Path(folder) / name
            place.mkdir()
            found = FAMILIES[name](place, quick)
            minutes = (time.monotonic() - start) / 60
            document[name] = _document(found, minutes, quick)
            for row in found:
                end = row.left_out or f"{row.survived:,} of {row.tried:,} survived"
                print(f"{row.family}: {row.what}: {end}", flush=True)
            ordered = {key: document[key] for key in FAMILIES if key in document}
            publish(output, "reliability", ordered, page, "family")
    print("\n" + page(document))
    if any(row["lost"] for family in document.values() for row in family["rows"]):
        sys.exit("something was lost; see above")


def _document(found: list[Row], minutes: float, quick: bool) -> dict[str, Any]:
    return {
        "machine": machine(),
        "minutes": round(minutes, 1),
        "quick": quick,
        "rows": [asdict(row) for row in found],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["planted"]:
        from tests.reliability import planted

        sys.exit(planted.main(sys.argv[2:]))
    if sys.argv[1:2] == ["mutants"]:
        from tests.reliability import mutants

        del sys.argv[1]
        typer.run(mutants.main)
        sys.exit()
    typer.run(main)
