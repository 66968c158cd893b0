"""Resolves ``schedule``, ``batch_sizes`` and ``target`` to targets and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge.compiler.backend import backend_of, device_here
from skforge.compiler.target import Target
from skforge.engine.kernels import KernelCache
from skforge.engine.schedules import schedule_table, table_at
from skforge.engine.targets import default_table, resolve_target
from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.forest.forest import Forest
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import CompiledModule, compile_forest
from skforge.schedule.ranges import BatchRange, SchedulesByRange
from skforge.schedule.schedule import Schedule


@dataclass(frozen=True)
class TargetChoice:
    target: Target  # the only target, or the CPU
    table: SchedulesByRange
    gpu: Target | None = None  # runs large batches
    gpu_table: SchedulesByRange | None = None
    gpu_min_rows: int | None = None  # first row count of the user's GPU ranges

    @property
    def tables(self) -> tuple[SchedulesByRange, SchedulesByRange] | None:
        return None if self.gpu_table is None else (self.table, self.gpu_table)


def choose(
    schedule: Any, batch_sizes: Any, forest: Forest, target: Any, reduction: Any
) -> TargetChoice:
    """Return the targets and dispatch tables for a ``CompiledForest``'s parameters.

    Raise ``InvalidInputError`` for batch sizes that are not numbers of rows,
    ``ScheduleError`` for a schedule of another kind of target, and ``TargetError`` if
    the target is not available.
    """
    if target != "auto":
        resolved = resolve_target(target)
        table = dispatch_table(schedule, batch_sizes, forest, resolved, reduction)
        resolve_target(resolved, table.values())
        return TargetChoice(resolved, table)
    host = Target.host()
    table = dispatch_table(schedule, batch_sizes, forest, host, reduction)
    if isinstance(schedule, str) and schedule == "auto":
        if (gpu := device_here()) is None:
            return TargetChoice(host, table)
        gpu_table = dispatch_table(schedule, batch_sizes, forest, gpu, reduction)
        return TargetChoice(host, table, gpu, gpu_table)
    gpu_table = {k: s for k, s in table.items() if s.kind == "gpu"}
    if not gpu_table:
        return TargetChoice(host, table)
    resolved = resolve_target("auto", gpu_table.values())
    if len(gpu_table) == len(table):
        return TargetChoice(resolved, table)
    cpu_table = {k: s for k, s in table.items() if k not in gpu_table}
    first = min(gpu_table)[0]
    if max(cpu_table)[0] > first:
        raise ScheduleError(
            f"the schedule table uses a GPU from {first} rows on and the CPU for "
            "larger batches; give the largest batches to the GPU."
        )
    return TargetChoice(host, cpu_table, resolved, gpu_table, first)


def compiled(
    forest: Forest,
    choice: TargetChoice,
    reduction: Any,
    gpu_min_rows: int | None,
    before: CompiledModule | AutoModule | None = None,
) -> CompiledModule | AutoModule:
    """Compile a forest for the chosen targets; schedules are known to fit.

    ``before`` is a module of the same forest, targets and reduction, whose kernels are
    used. Kernels on the CPU are also shared with other processes, so that they have to
    be compared with the source or the forest as they arrive.
    """
    kernels, how = kernels_of(before).get, (reduction, None, None)
    asked = choice.table, choice.target, *how, kernels(choice.target)
    cpu = CompiledModule(forest, *asked)
    cpu.keep_kernels()
    if choice.gpu is None:
        return cpu
    assert choice.gpu_table is not None
    asked = choice.gpu_table, choice.gpu, *how, kernels(choice.gpu)
    gpu = CompiledModule(forest, *asked)
    return AutoModule(cpu, gpu, gpu_min_rows or choice.gpu_min_rows)


def compile_first(module: CompiledModule | AutoModule) -> None:
    """Compile the kernels of the smallest batches, and all that run on a GPU.

    Calls compile the others when they need them.
    """
    for part in module.parts:
        if backend_of(part.target).native:
            part.kernels.kernel(0)
        else:
            part.compile_all()


def kernels_of(module: CompiledModule | AutoModule | None) -> dict[Target, KernelCache]:
    return {part.target: part.compiler for part in (module.parts if module else ())}


def rechosen(
    tables: tuple[SchedulesByRange, SchedulesByRange], forest: Forest, reduction: Any
) -> TargetChoice:
    host, gpu = Target.host(), device_here()
    if gpu is None:
        return TargetChoice(host, tables[0])
    table = tables[1]
    try:
        compile_forest(forest, table, gpu, reduction)
    except ScheduleError:  # the GPU here is smaller
        table = default_table(forest, gpu, reduction)
    return TargetChoice(host, tables[0], gpu, table)


def dispatch_table(
    schedule: Any, batch_sizes: Any, forest: Forest, target: Target, reduction: Any
) -> dict[BatchRange, Schedule]:
    """Return the schedule of each batch-size range, with defaults if none is given.

    Raise ``InvalidInputError`` for batch sizes that are not numbers of rows, and
    ``ScheduleError`` for an unknown preset or keys that are not ranges of rows.
    """
    ranges = size_ranges(batch_sizes)
    table = schedule_table(schedule)
    if table is not None and ranges is not None:
        if isinstance(schedule, Mapping):
            raise InvalidInputError(
                "batch_sizes and a schedule given as a dict both set the batch "
                "ranges; leave out batch_sizes."
            )
        return dict.fromkeys(ranges, table[1, None])
    if table is not None:
        return table
    defaults = default_table(forest, target, reduction)
    if ranges is None:
        return defaults
    return {batch: table_at(defaults, size) for batch, size in ranges.items()}


def size_ranges(batch_sizes: Any) -> dict[BatchRange, int] | None:
    if batch_sizes is None:
        return None
    values = np.asarray(batch_sizes)
    whole = values.dtype.kind in "iu" and values.ndim == 1
    sizes = [int(size) for size in np.unique(values)] if whole else []
    if not sizes or sizes[0] < 1:
        raise InvalidInputError(
            f"batch_sizes must be positive whole numbers of rows. Got {batch_sizes!r} "
            "instead."
        )
    starts = [1, *(size + 1 for size in sizes[:-1])]
    ranges = zip(starts, [*sizes[:-1], None], strict=True)
    return dict(zip(ranges, sizes, strict=True))
