"""Rules for where marks may be, one function each: it yields what breaks the rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from skforge.schedule import directives as d
from skforge.schedule.bound import BoundLoop
from skforge.schedule.nest import LoopVariable, Nest, walk

#: A broken rule as a sentence, and the loop that it is about.
Broken: TypeAlias = tuple[str, str | None]


def mark_problems(nest: Nest, variable: LoopVariable, mark: d.Mark) -> Iterator[str]:
    name = variable.name
    for old in variable.marks:
        if type(old) is type(mark):
            yield f'{mark} comes after {old}, which already marks "{name}".'
        if _exclude(old, mark):
            yield f'{mark} cannot be combined with {old}, which already marks "{name}".'
        if variable.root == "batch":
            yield from _shared_by_copies(old, mark)
            yield from _shared_by_copies(mark, old)
    if mark.ROOT is not None and variable.root != mark.ROOT:
        wanted, root = d.UNITS[mark.ROOT], d.UNITS[variable.root]
        yield f'{mark} needs a loop over {wanted}, but "{name}" goes over {root}.'
    if mark.INNERMOST:
        for loop, _ in walk(nest.loops):
            if loop.name == name and loop.body:
                yield (
                    f'{mark} needs an innermost loop, but "{name}" contains '
                    f'"{loop.body[0].name}".'
                )


def _exclude(old: d.Mark, new: d.Mark) -> bool:
    if old.RUNS and new.RUNS:
        return True
    kinds = {type(old), type(new)}
    # Both generate separate code, or run walks of several trees together.
    if d.Specialize in kinds and kinds & {d.Unroll, d.Interleave}:
        return True
    # Atomics add directly to the result, so there are no partial sums to vectorise.
    return kinds == {d.AtomicReduce, d.VectorReduce}


def _shared_by_copies(keeper: d.Mark, runner: d.Mark) -> Iterator[str]:
    lanes = isinstance(runner, d.Vectorize) and isinstance(
        keeper, (d.Cache, d.Quantize)
    )
    if lanes or (isinstance(runner, d.Interleave) and isinstance(keeper, d.Quantize)):
        yield from _one_at_a_time(keeper, runner)


def _one_at_a_time(keeper: d.Mark, runner: d.Mark) -> Iterator[str]:
    if not isinstance(runner, d.Interleave) or runner.factor != 1:
        yield (
            f"{keeper} fetches what one iteration uses, and {runner} runs several at "
            f"once; put {d.name_of(keeper)} on an outer loop."
        )


def broken_rules(nest: Nest, directive: d.Directive) -> Iterator[Broken]:
    for rule in (_innermost, _gpu_order, _one_walk, _cache_block):
        yield from rule(nest, directive)


def _innermost(nest: Nest, directive: d.Directive) -> Iterator[Broken]:
    for loop, _ in walk(nest.loops):
        for mark in nest.variable(loop.name).marks:
            if mark.INNERMOST and loop.body:
                yield (
                    f'{directive} puts "{loop.body[0].name}" inside "{loop.name}", but '
                    f"{mark} needs an innermost loop.",
                    loop.name,
                )


def _gpu_order(nest: Nest, directive: d.Directive) -> Iterator[Broken]:
    for path in nest.paths():
        mapped: list[d.GpuDimension] = []
        for mark in filter(None, (v.mark(d.GpuDimension) for v in path)):
            for old in mapped:
                if old.dimension == mark.dimension:
                    new, other = (mark, old) if mark == directive else (old, mark)
                    yield (
                        f'{directive} uses "{mark.dimension}" twice in one nest: '
                        f"{other} has it already.",
                        new.index,
                    )
                if old.dimension[:5] == "block" and mark.dimension[:4] == "grid":
                    yield (
                        f'{directive} leaves "{mark.index}" on "{mark.dimension}" '
                        f'inside "{old.index}" on "{old.dimension}"; the grid must be '
                        "outside the block.",
                        mark.index,
                    )
            mapped.append(mark)


def _one_walk(nest: Nest, directive: d.Directive) -> Iterator[Broken]:
    if not isinstance(directive, d.WalkStart):
        return
    for path in nest.paths(directive.index):
        for mark in (mark for variable in path for mark in variable.marks):
            if isinstance(mark, d.WalkStart) and mark != directive:
                yield (
                    f"{directive} comes after {mark}, which already says how the walks "
                    f'under "{directive.index}" start.',
                    directive.index,
                )


def _cache_block(nest: Nest, directive: d.Directive) -> Iterator[Broken]:
    for path in nest.paths():
        for place, variable in enumerate(path):
            mark = variable.mark(d.Cache) or variable.mark(d.Quantize)
            if mark is None:
                continue
            order = [v for v in nest.variables if v.root == variable.root and v in path]
            inside = [v for v in path[place + 1 :] if v.root == variable.root]
            if set(inside) != set(order[len(order) - len(inside) :]):
                what = d.UNITS[variable.root]
                by = "" if mark == directive else f" that {mark} takes"
                yield (
                    f"{directive} needs the {what}{by} in one iteration of "
                    f'"{variable.name}" to be consecutive; keep inner tiles inside the '
                    "loops they tile.",
                    variable.name,
                )


# --- what can only be judged when the schedule is bound ------------------------------

# Unrolled and interleaved walks are copies of code, so their number is bounded.
MAX_COPIES = 256
# The limit of CUDA and HIP on every device since 2010.
MAX_BLOCK_THREADS = 1024
# Limits of single dimensions, for both vendors; x can be as large as a whole block or a
# batch.
MAX_GPU_TRIPS = {"grid.y": 65535, "grid.z": 65535, "block.z": 64}


def bind_problems(nest: Nest, kind: d.ScheduleKind) -> Iterator[Broken]:
    for variable in nest.variables:
        for mark in variable.marks:
            if kind in mark.NOT_ON:
                yield f"{mark} {mark.NOT_ON[kind]}", variable.name
            for problems in (
                _layout_problem(variable, mark, kind),
                _reduce_problem(variable, mark),
                _lanes_problem(nest, mark),
                _predicates_problem(nest, mark),
                _codes_problem(nest, variable, mark),
            ):
                for why in problems:
                    yield why, variable.name
    if kind == "gpu":
        yield from _kernel_problem(nest)


def _layout_problem(
    variable: LoopVariable, mark: d.Mark, kind: d.ScheduleKind
) -> Iterator[str]:
    in_shared_memory = kind == "gpu" and variable.root == "batch"
    if isinstance(mark, d.Cache) and mark.layout is not None and not in_shared_memory:
        yield (
            f"{mark} sets how rows are stored in a GPU's shared memory; leave the "
            "layout out for trees and for CPUs."
        )


def _reduce_problem(variable: LoopVariable, mark: d.Mark) -> Iterator[str]:
    reduces = isinstance(mark, (d.AtomicReduce, d.SharedReduce, d.VectorReduce))
    if reduces and not variable.has(d.Parallel, d.GpuDimension):
        yield (
            f'{mark} needs a loop whose iterations run at the same time; mark "'
            f'{variable.name}" with parallel or gpu_dimension, or leave it out.'
        )


def _lanes_problem(nest: Nest, mark: d.Mark) -> Iterator[str]:
    if not isinstance(mark, d.Vectorize):
        return
    for option in nest.options:
        if (
            isinstance(option, d.TileNodes)
            and option.size > 1
            and option.kind != "complete"
        ):
            yield (
                f"{mark} walks one node at a time in each lane, but {option} groups "
                "nodes; leave one of the two out."
            )
    if nest.variable(mark.index).root == "batch":
        return
    by_values = d.Represent("tiles") in nest.options
    for *outside, _ in nest.paths(mark.index):
        if any(v.root == "tree" for v in outside):
            yield (
                f"{mark} takes one row through all trees at once; leave the loop over "
                "trees in one piece."
            )
        if not (outside and (by_values or outside[-1].mark(d.Quantize))):
            yield (
                f"{mark} compares the bin codes of one row; mark the loop over rows "
                "right outside it with quantize."
            )
        for other in nest.variable(mark.index).marks:
            if not isinstance(other, d.Vectorize):
                yield (
                    f"{mark} evaluates all trees at once, so {other} has no effect; "
                    "leave it out."
                )


def _predicates_problem(nest: Nest, mark: d.Mark) -> Iterator[str]:
    if not isinstance(mark, d.CachePredicates):
        return
    of_trees = nest.variable(mark.index).root == "tree"
    for path in nest.paths(mark.index):
        at = path.index(nest.variable(mark.index))
        inside = path[at + 1 :]
        rows = [v for v in inside if v.root == "batch"]
        if of_trees:
            yield from _trees_of_predicates(path[:at], mark)
        if not rows:
            what = "reorder its inner loop there" if of_trees else "mark the outer loop"
            yield (
                f'{mark} needs a block of rows inside "{mark.index}"; tile the batch '
                f"and {what}."
            )
        if not isinstance(rows[0].count, int):
            yield (
                f'{mark} needs a fixed number of rows inside "{mark.index}"; tile the '
                "batch with a positive size."
            )
        if len(inside) == len(rows) and not of_trees:
            yield f'{mark} needs a tree loop inside "{mark.index}".'
        if rows[-1].mark(d.Vectorize) is None:
            yield (
                f"{mark} evaluates a block of rows at once; mark their loop "
                f'"{rows[-1].name}" with vectorize.'
            )
        for other in (other for variable in path for other in variable.marks):
            if isinstance(other, d.WalkStart):
                yield (
                    f"{mark} replaces the walk by bit logic, so {other} has no "
                    "effect; leave it out."
                )


def _trees_of_predicates(
    outside: tuple[LoopVariable, ...], mark: d.CachePredicates
) -> Iterator[str]:
    for variable in outside:
        if (other := variable.mark(d.CachePredicates)) is not None:
            yield f"{mark} cannot be combined with {other} around it; leave one out."
        if variable.root == "tree":
            yield (
                f'{mark} needs the outermost loop over trees, but it is inside "'
                f'{variable.name}"; mark that loop.'
            )
    if not outside:
        yield (
            f'{mark} needs a block of rows around "{mark.index}"; tile the batch and '
            "reorder its outer loop there."
        )


def _codes_problem(nest: Nest, variable: LoopVariable, mark: d.Mark) -> Iterator[str]:
    if not isinstance(mark, d.Quantize):
        return
    if not isinstance(variable.step, int):
        yield (
            f'{mark} needs a fixed number of rows in one iteration of "{mark.index}"; '
            "tile the batch with a positive size."
        )
    for path in nest.paths():
        # The trees hold either codes or thresholds.
        rows = [v for v in path if v.root == "batch"]
        if not any(v.has(d.Quantize) for v in rows):
            yield (
                f'{mark} must apply to all rows or none, but "{rows[0].name}" goes '
                "over some rows without it; mark a loop in every part of the batch."
            )
        if variable not in path:
            continue
        for loop in path:
            other = loop.mark(d.Quantize)
            if other is not None and other != mark:
                yield (
                    f"{mark} cannot be combined with {other} in one nest; leave one "
                    "of them out."
                )
            cached = loop.mark(d.CachePredicates)
            if cached is not None:
                yield (
                    f"{mark} encodes rows for walks, but {cached} replaces the walks "
                    "and searches the rows itself; leave one of the two out."
                )


def _kernel_problem(nest: Nest) -> Iterator[Broken]:
    for path in nest.paths():
        if not any(variable.has(d.GpuDimension) for variable in path):
            yield (
                "A schedule for a GPU needs at least one gpu_dimension around every "
                "walk.",
                path[-1].name,
            )
        yield from _shared_problem(path)
        yield from _between_problem(path)


def _shared_problem(path: tuple[LoopVariable, ...]) -> Iterator[Broken]:
    threads: str | None = None
    for variable in path:
        name = variable.name
        dimension = variable.mark(d.GpuDimension)
        if dimension is not None and dimension.dimension.startswith("block"):
            threads = threads or name
        cache = variable.mark(d.Cache) or variable.mark(d.Quantize)
        if cache is None:
            continue
        together = variable.mark(d.Interleave)
        if together is not None:
            for why in _one_at_a_time(cache, together):
                yield why, name
        if threads is not None:
            yield (
                f'{cache} is inside "{threads}", whose iterations are threads; all '
                "threads of a block fill shared memory together, so put it on a loop "
                "outside them.",
                name,
            )
        if variable.root == "batch" and not isinstance(variable.step, int):
            yield (
                f"{cache} brings the rows of one iteration to shared memory, which "
                "needs a fixed number of them; tile the batch with a positive size.",
                name,
            )


def _between_problem(path: tuple[LoopVariable, ...]) -> Iterator[Broken]:
    marks = [variable.mark(d.GpuDimension) for variable in path]
    grid = [k for k, m in enumerate(marks) if m and m.dimension.startswith("grid")]
    first, last = min(grid, default=0), max(grid, default=0)
    for variable, mark in zip(path[first:last], marks[first:last], strict=True):
        if mark is None:
            yield (
                f'"{variable.name}" is a serial loop between loops over the grid, '
                "whose blocks all run at once; reorder it into the block.",
                variable.name,
            )
    for variable in path[:last]:
        special = variable.mark(d.Specialize)
        if special is not None and variable.root == "tree":
            yield (
                f'{special} chooses code by depth, but "{path[last].name}" inside it '
                "is over the grid; reorder it outside.",
                variable.name,
            )


def copies_problems(
    loops: tuple[BoundLoop, ...], copies: int = 1, threads: int = 1
) -> Iterator[Broken]:
    for loop in loops:
        n_copies, n_threads, most = copies, threads, loop.max_trips
        if loop.has(d.Unroll):
            if most is None:
                yield (
                    f'{d.Unroll(loop.name)} needs a loop of fixed length, but that of "'
                    f'{loop.name}" depends on the batch; tile it first.',
                    loop.name,
                )
            n_copies *= max(1, most or 1)
        together = loop.mark(d.Interleave)
        n_copies *= 1 if together is None else together.factor or 1
        if n_copies > MAX_COPIES:
            yield (
                f'The loops down to "{loop.name}" make {n_copies} copies of the walk '
                f"by unroll and interleave, more than {MAX_COPIES}; use smaller tiles.",
                loop.name,
            )
        mapped, dimension = loop.mark(d.GpuDimension), loop.dimension or ""
        if dimension.startswith("block"):
            if most is None:
                yield (
                    f'{mapped} needs a loop of fixed length, but that of "{loop.name}" '
                    "depends on the batch; tile it first.",
                    loop.name,
                )
            n_threads *= max(1, most or 1)
        limit = MAX_GPU_TRIPS.get(dimension)
        if limit is not None and (most or 0) > limit:
            yield (
                f'{mapped}: "{loop.name}" has {most:,} iterations, but that dimension '
                f'allows at most {limit:,}; use larger tiles, or "{dimension[:-1]}x".',
                loop.name,
            )
        if n_threads > MAX_BLOCK_THREADS:
            yield (
                f'The loops down to "{loop.name}" make blocks of {n_threads} threads, '
                f"more than {MAX_BLOCK_THREADS}; use smaller tiles.",
                loop.name,
            )
        yield from copies_problems(loop.body, n_copies, n_threads)
