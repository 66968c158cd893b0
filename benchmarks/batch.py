"""Measure skforge against other predictors: models x batch sizes x threads.

All systems of a batch size are timed in interleaved rounds of one process on the same
rows; medians are printed. What skforge returns must have the very bits of the model's
own library first: a difference ends the run.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from cases import Case, cases
from compile_time import CompileTime, measure_compile_time
from numpy.typing import NDArray
from systems import System, own_library, peers, skforge_one_shot
from threadpoolctl import threadpool_limits

from skforge import Target
from skforge._cli_report import describe_difference, duration
from skforge._timing import Timing, interleave

BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"


@dataclass(frozen=True, slots=True)
class Line:
    """One system at one batch size."""

    model: str
    threads: int
    rows: int
    system: str
    seconds: float  # of one call
    speedup: float  # of skforge over this system, the median of rounds' ratios
    max_abs_diff: float  # from the model's own library; NaN where not comparable
    same_bits: bool
    input_bytes: int  # of the batch


def main(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of names of models; default: all."),
    ] = None,
    batch_sizes: Annotated[str, typer.Option(help="Rows a call.")] = "1,8,64,512,4096",
    threads: Annotated[str, typer.Option(help="Threads.")] = "1,2",
    seconds: Annotated[float, typer.Option(help="A model, batch and threads.")] = 2.0,
    others: Annotated[bool, typer.Option(help="Measure installed peers.")] = True,
    compile_only: Annotated[bool, typer.Option(help="Only compile times.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write tables here.")] = None,
    readme: Annotated[
        Path | None, typer.Option(help=f"Replace what is between {BEGIN} and {END}.")
    ] = None,
) -> None:
    """Measure, print Markdown, and write it with the raw numbers where asked."""
    sizes, counts = _numbers(batch_sizes), _numbers(threads)
    lines: list[Line] = []
    compiled: list[CompileTime] = []
    for case in cases(models or []):
        print(f"{case.name} ({len(case.rows):,} rows, {case.rows_from})", flush=True)
        compiled.append(measure_compile_time(case.name, case.source))
        for count in [] if compile_only else counts:
            lines += measure(case, sizes, count, seconds, others)
    if not models or compile_only:
        from compile_time import many_small_trees

        compiled += many_small_trees()
    report = to_markdown(lines, compiled)
    print("\n" + report)
    if json_file is not None:
        document = {
            "machine": machine(),
            "lines": [asdict(line) for line in lines],
            "compile": [asdict(time) for time in compiled],
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(report, encoding="utf-8")
    if readme is not None:
        _replace(readme, report)


def measure(
    case: Case, sizes: list[int], threads: int, seconds: float, others: bool
) -> list[Line]:
    """Return the lines of one model on some threads."""
    with threadpool_limits(limits=threads):
        # Forests of scikit-learn sum in the order their threads finish: the truth is
        # what one thread gives.
        expected = own_library(case, 1).predict(case.rows)
        own = own_library(case, threads)
        ours, module = skforge_one_shot(case, threads)
        module.compile_all()
        systems = [ours, own, *(peers(case, threads) if others else [])]
        difference = describe_difference(ours.predict(case.rows), expected)
        if difference is not None:
            sys.exit(f"{case.name}: predictions of skforge differ: {difference}")
        agreement = {
            s.name: _compare(s.predict(case.rows), expected) for s in systems
        }
        lines = []
        for size in sizes:
            timing = _time(systems, case.rows, size, seconds)
            for system in systems:
                line = Line(
                    case.name,
                    threads,
                    size,
                    system.name,
                    timing.seconds(system.name),
                    timing.speedup("skforge", over=system.name),
                    *agreement[system.name],
                    size * case.rows.shape[1] * case.rows.itemsize,
                )
                lines.append(line)
                print(
                    f"  {threads} thread(s), {size:5,} rows, {system.name:14} "
                    f"{duration(line.seconds):>8}  {line.speedup:6.2f}x",
                    flush=True,
                )
    return lines


def _time(systems: list[System], X: NDArray[Any], n: int, seconds: float) -> Timing:
    """Time all systems on the same batches; small ones change from call to call."""
    wanted = max(1, min(64, 4096 // n))
    pool = np.resize(X, (wanted * n, X.shape[1]))
    batches = [np.ascontiguousarray(pool[i * n : (i + 1) * n]) for i in range(wanted)]

    def call(system: System) -> Any:
        following, predict = cycle(batches), system.predict
        return lambda: predict(next(following))

    return interleave({s.name: call(s) for s in systems}, seconds=seconds, rounds=15)


def _compare(result: NDArray[Any], expected: NDArray[Any]) -> tuple[float, bool]:
    """Return the greatest difference, NaN if shapes differ, and if bits are equal."""
    result = np.asarray(result)
    if result.shape == (*expected.shape, 1):
        result = result[:, 0]
    if result.shape != expected.shape:
        return float("nan"), False
    greatest = np.max(np.abs(result.astype(np.float64) - expected), initial=0)
    return float(greatest), describe_difference(result, expected) is None


def machine() -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    packages = {}
    for name in ("numpy", "scikit-learn", "xgboost", "llvmlite"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "target": str(Target.host()),
        "python": platform.python_version(),
        "packages": packages,
        "load_average": os.getloadavg()[0],
        "measured": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def to_markdown(lines: list[Line], compiled: list[CompileTime]) -> str:
    """Return the tables: µs a row and speedup, threads apart; compile times."""
    facts = machine()
    versions = ", ".join(f"{name} {v}" for name, v in facts["packages"].items())
    parts = [
        f"{facts['target']}; Python {facts['python']}, {versions}; load average "
        f"{facts['load_average']:.1f}; {facts['measured']}. Every skforge result was "
        "bit-identical to the model's own library before it was timed.\n"
    ]
    for threads in sorted({line.threads for line in lines}):
        parts.append(_speed_table([x for x in lines if x.threads == threads], threads))
    if compiled:
        rows = [
            f"| {t.model} | {t.trees:,} | {duration(t.read_seconds)} "
            f"| {duration(t.compile_seconds)} | {t.kernels} |"
            for t in compiled
        ]
        parts.append(
            "| compile time | trees | read the model | compile all kernels | kernels |"
            "\n|---|--:|--:|--:|--:|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


def _speed_table(lines: list[Line], threads: int) -> str:
    sizes = sorted({line.rows for line in lines})
    head = f"| {threads} thread{'s' if threads > 1 else ''}, µs a row | against | "
    rows = [head + " | ".join(f"{n:,} rows" for n in sizes) + " | max abs diff |"]
    rows.append("|---|---|" + "--:|" * len(sizes) + "--:|")
    for model in dict.fromkeys(line.model for line in lines):
        of_model = [line for line in lines if line.model == model]
        for system in dict.fromkeys(line.system for line in of_model):
            if system == "skforge":
                continue
            cells = []
            for n in sizes:
                ours, theirs = (
                    next(x for x in of_model if (x.rows, x.system) == (n, name))
                    for name in ("skforge", system)
                )
                cells.append(
                    f"{ours.seconds / n * 1e6:.3g} vs {theirs.seconds / n * 1e6:.3g} "
                    f"**{theirs.speedup:.1f}×**"
                )
            diff = next(x for x in of_model if x.system == system)
            cells.append("same bits" if diff.same_bits else f"{diff.max_abs_diff:.1e}")
            rows.append(f"| {model} | {system} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _replace(readme: Path, report: str) -> None:
    text = readme.read_text(encoding="utf-8")
    pattern = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"{readme} has no {BEGIN} ... {END}")
    text = pattern.sub(lambda _: f"{BEGIN}\n{report}{END}", text)
    readme.write_text(text, encoding="utf-8")


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1,64.")
    return numbers


if __name__ == "__main__":
    typer.run(main)
