"""Ablate the best schedules: what each directive and representation is worth.

For a model and batch size, the default schedule and the default walking one; each of
their directives off, sizes halved and doubled, other representations, other ways to
sum. Every variant's predictions are compared with the schedule's own before any is
timed, all in interleaved rounds of one process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from ablation_lines import Line
from cases import Case, cases
from numpy.typing import NDArray
from schedule_variants import (
    Variant,
    other_representations,
    other_sizes,
    without_each,
)
from threadpoolctl import threadpool_limits

from skforge import Schedule, ScheduleError, Target, compile_forest
from skforge.cli.report import describe_difference, interleave
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.module import CompiledModule

Reduction = Literal["exact", "reproducible", "fast"]
Call = Callable[[], object]


def main(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of names of models; default: all."),
    ] = None,
    batch_sizes: Annotated[str, typer.Option(help="Rows a call.")] = "1,64,4096",
    threads: Annotated[int, typer.Option(help="Threads.")] = 1,
    target: Annotated[str, typer.Option(help="As compile_forest's target.")] = "cpu",
    seconds: Annotated[float, typer.Option(help="For a variant.")] = 0.15,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write tables here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bars here.")] = None,
) -> None:
    """Print what each part of the best schedules is worth, and save it where asked."""
    lines: list[Line] = []
    for case in cases(models or []):
        for size in map(int, batch_sizes.split(",")):
            made = ablate(case, size, Target.parse(target), threads, seconds)
            print(to_markdown(made), flush=True)
            lines += made
    print(f"Load average {os.getloadavg()[0]:.1f} at the end.")
    if json_file is not None:
        text = json.dumps([asdict(line) for line in lines], indent=1)
        json_file.write_text(text + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(to_markdown(lines), encoding="utf-8")
    if plot is not None:
        from ablation_plot import draw

        draw(lines, plot)


def ablate(
    case: Case, size: int, target: Target, threads: int = 1, seconds: float = 0.15
) -> list[Line]:
    """Return the lines of one model and batch size.

    Parameters
    ----------
    case : Case
        The model and rows, which are repeated to fill the batch.
    size : int
        Rows of a call.
    target : Target
        What to compile for; it has to run here.
    threads : int, default=1
        Threads of a call, at most.
    seconds : float, default=0.15
        To spend on timing a variant.

    Returns
    -------
    list of Line
        The whole schedule first; each directive of it has one line of kind "off".
    """
    forest = case.forest
    default = compile_forest(forest, target=target).schedule_for(size)
    walks = compile_forest(forest, dict(walking_schedules(forest, target)), target)
    wholes = {"default": default, "walk": walks.schedule_for(size)}
    if wholes["walk"] == default:
        del wholes["default"]
    lines = []
    for base, whole in wholes.items():
        planned = list(_planned(forest, target, whole))
        if base == "default":
            walking = Variant("representation", "the walking schedule", wholes["walk"])
            planned.append((walking, "exact"))
        lines += _measure(case, size, target, threads, seconds, base, planned)
    return lines


def _planned(
    forest: Forest, target: Target, whole: Schedule
) -> Iterator[tuple[Variant, Reduction]]:
    """Yield the whole schedule and its variants, with how they sum."""

    def check(schedule: Schedule, reduction: Reduction = "exact") -> None:
        compile_forest(forest, schedule, target, reduction)

    yield Variant("whole", "the whole schedule", whole), "exact"
    for variants in (without_each, other_sizes, other_representations):
        for variant in variants(whole, check):
            yield variant, "exact"
    modes: tuple[Reduction, ...] = ("fast", "reproducible")
    for mode in modes:
        change = f'reduction="{mode}"'
        try:
            check(whole, mode)
        except ScheduleError as error:
            why = str(error).splitlines()[0]
            yield Variant("reduction", change, None, why), mode
        else:
            yield Variant("reduction", change, whole), mode


def _measure(
    case: Case,
    size: int,
    target: Target,
    threads: int,
    seconds: float,
    base: str,
    planned: list[tuple[Variant, Reduction]],
) -> list[Line]:
    """Compile, compare and time; equal schedules share a kernel and its samples."""
    pool = np.resize(case.rows, (max(size, 1024), case.rows.shape[1]))
    starts = range(0, len(pool) - size + 1, size)
    batches = [np.ascontiguousarray(pool[i : i + size]) for i in starts][:64]
    calls: dict[str, Call] = {}
    differences: dict[str, tuple[float, bool]] = {}
    expected: NDArray[Any] | None = None
    for variant, mode in planned:
        key = _key(variant, mode)
        if variant.schedule is None or key in calls:
            continue
        module = compile_forest(case.forest, variant.schedule, target, mode, threads)
        found = np.concatenate([module.predict_raw(batch) for batch in batches])
        expected = found if expected is None else expected
        differences[key] = _compare(case, variant, mode, found, expected)
        calls[key] = _call(module, batches)
    with threadpool_limits(limits=threads):
        timing = interleave(calls, seconds=seconds * len(calls), rounds=11)
    whole, lines = _key(*planned[0]), []
    for variant, mode in planned:
        line = Line(case.name, size, base, variant.kind, variant.change, variant.note)
        if variant.schedule is not None:
            key = _key(variant, mode)
            greatest, same = differences[key]
            line = replace(
                line,
                schedule=repr(variant.schedule),
                us_row=timing.seconds(key) / size * 1e6,
                cost=timing.speedup(whole, over=key),
                max_abs_diff=greatest,
                same_bits=same,
            )
        lines.append(line)
    return lines


def _key(variant: Variant, mode: Reduction) -> str:
    return f"{variant.schedule!r} {mode}"


def _call(module: CompiledModule, batches: list[NDArray[Any]]) -> Call:
    following, predict = cycle(batches), module.predict_raw
    return lambda: predict(next(following))


def _compare(
    case: Case,
    variant: Variant,
    mode: Reduction,
    found: NDArray[Any],
    expected: NDArray[Any],
) -> tuple[float, bool]:
    """Return the greatest difference; in exact mode a bit that differs ends the run."""
    difference = describe_difference(found, expected)
    if mode == "exact" and difference is not None:
        raise SystemExit(f"{case.name}, {variant.schedule}: {difference}")
    apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    leaves = np.abs(case.forest.leaf_value.astype(np.float64))
    # Any order of a sum is within this of any other.
    bound = case.forest.n_trees**2 * float(leaves.max()) * 2.0**-23
    greatest = float(apart.max(initial=0))
    if greatest > bound:
        raise SystemExit(f"{case.name}, {variant.schedule}, {mode}: {difference}")
    return greatest, difference is None


def to_markdown(lines: list[Line]) -> str:
    """Return a table for each model, batch size and schedule."""
    parts = []
    for line in lines:
        if line.kind == "whole":
            head = f"### {line.model}, {line.rows:,} rows, {line.base} schedule\n"
            parts += [f"\n{head}", f"`{line.schedule}`\n"]
            parts.append("| | change | µs a row | cost | outputs |")
            parts.append("|---|---|--:|--:|---|")
        note = f" ({line.note})" if line.note else ""
        if line.us_row is None or line.cost is None:
            parts.append(f"| {line.kind} | `{line.change}`{note} | | | none |")
            continue
        same = "same bits" if line.same_bits else f"within {line.max_abs_diff:.1e}"
        parts.append(
            f"| {line.kind} | `{line.change}`{note} | {line.us_row:.4g} "
            f"| **{line.cost:.2f}×** | {same} |"
        )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    typer.run(main)
