"""Rules for where marks may be, one function each."""

from __future__ import annotations

from skforge.compiler.schedule import directives as d
from skforge.compiler.schedule.bound import BoundLoop
from skforge.compiler.schedule.nest import (
    Nest,
    Variable,
    walk,
)


def mark_problem(nest: Nest, variable: Variable, mark: d.Mark) -> str | None:
    """Say why a loop cannot have a mark, or return None."""
    name = variable.name
    for old in variable.marks:
        if type(old) is type(mark):
            return f'{mark} comes after {old}, which already marks "{name}".'
        if _exclude(old, mark):
            return f'{mark} excludes {old}, which already marks "{name}".'
        if variable.root == "batch":
            why = _shared_by_copies(old, mark) or _shared_by_copies(mark, old)
            if why is not None:
                return why
    if mark.ROOT is not None and variable.root != mark.ROOT:
        wanted, found = d.UNITS[mark.ROOT], d.UNITS[variable.root]
        return f'{mark} needs a loop over {wanted}, but "{name}" goes over {found}.'
    if mark.INNERMOST:
        for loop, _ in walk(nest.loops):
            if loop.name == name and loop.body:
                return (
                    f'{mark} needs an innermost loop, but "{name}" contains '
                    f'"{loop.body[0].name}".'
                )
    return None


def _exclude(one: d.Mark, two: d.Mark) -> bool:
    if one.RUNS and two.RUNS:
        return True
    kinds = {type(one), type(two)}
    # Both generate separate code, or run walks of several trees together.
    if d.Specialize in kinds and kinds & {d.Unroll, d.Interleave}:
        return True
    # Atomics add directly to the result, so there are no partial sums to vectorise.
    return kinds == {d.AtomicReduce, d.VectorReduce}


def _shared_by_copies(keeper: d.Mark, runner: d.Mark) -> str | None:
    """Reject a buffer that concurrent iterations would share.

    Interleaved iterations may share a ``cache`` on a CPU, because it only prefetches
    and has no buffer.
    """
    lanes = isinstance(runner, d.Vectorize) and isinstance(
        keeper, (d.Cache, d.Quantize)
    )
    if lanes or (isinstance(runner, d.Interleave) and isinstance(keeper, d.Quantize)):
        return _one_at_a_time(keeper, runner)
    return None


def _one_at_a_time(keeper: d.Mark, runner: d.Mark) -> str | None:
    if isinstance(runner, d.Interleave) and runner.factor == 1:
        return None
    return (
        f"{keeper} fetches what one iteration uses, and {runner} runs several at once; "
        f"put {d.name_of(keeper)} on a loop outside."
    )


def broken_rule(nest: Nest, directive: d.Directive) -> tuple[str, str] | None:
    """Return which rule a directive broke in its resulting nest, and the loop."""
    for rule in (_innermost, _gpu_order, _one_walk, _cache_block):
        broken = rule(nest, directive)
        if broken is not None:
            return broken
    return None


def _innermost(nest: Nest, directive: d.Directive) -> tuple[str, str] | None:
    for loop, _ in walk(nest.loops):
        for mark in nest.variable(loop.name).marks:
            if mark.INNERMOST and loop.body:
                return (
                    f'{directive} puts "{loop.body[0].name}" inside "{loop.name}", but '
                    f"{mark} needs an innermost loop.",
                    loop.name,
                )
    return None


def _gpu_order(nest: Nest, directive: d.Directive) -> tuple[str, str] | None:
    for path in nest.paths():
        mapped: list[d.GpuDimension] = []
        for mark in filter(None, (v.mark(d.GpuDimension) for v in path)):
            for old in mapped:
                if old.dimension == mark.dimension:
                    new, other = (mark, old) if mark == directive else (old, mark)
                    return (
                        f'{directive} uses "{mark.dimension}" twice in one nest: '
                        f"{other} has it already.",
                        new.index,
                    )
                if old.dimension[:5] == "block" and mark.dimension[:4] == "grid":
                    return (
                        f'{directive} leaves "{mark.index}" on "{mark.dimension}" '
                        f'inside "{old.index}" on "{old.dimension}"; the grid must be '
                        "outside the block.",
                        mark.index,
                    )
            mapped.append(mark)
    return None


def _one_walk(nest: Nest, directive: d.Directive) -> tuple[str, str] | None:
    if not isinstance(directive, d.WalkStart):
        return None
    for path in nest.paths(directive.index):
        for mark in (mark for variable in path for mark in variable.marks):
            if isinstance(mark, d.WalkStart) and mark != directive:
                return (
                    f"{directive} comes after {mark}, which already says how the walks "
                    f'under "{directive.index}" start.',
                    directive.index,
                )
    return None


def _cache_block(nest: Nest, directive: d.Directive) -> tuple[str, str] | None:
    """Check that one iteration of a cached loop uses consecutive rows or trees."""
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
                return (
                    f"{directive} needs the {what}{by} in one iteration of "
                    f'"{variable.name}" to be consecutive; keep inner tiles inside the '
                    "loops they tile.",
                    variable.name,
                )
    return None


# --- what can only be judged when the schedule is bound ------------------------------

# Unrolled and interleaved walks are copies of code, so their number is bounded.
MAX_COPIES = 256
# The limit of CUDA and HIP on every device since 2010.
MAX_BLOCK_THREADS = 1024
# Limits of single dimensions, for both vendors; x can be as large as a whole block or a
# batch.
MAX_GPU_TRIPS = {"grid.y": 65535, "grid.z": 65535, "block.z": 64}


def bind_problem(nest: Nest, kind: d.Kind) -> tuple[str, str | None] | None:
    """Say why a nest with known extents does not suit a kind of target."""
    for variable in nest.variables:
        for mark in variable.marks:
            why = (
                _kind_problem(mark, kind)
                or _layout_problem(variable, mark, kind)
                or _reduce_problem(variable, mark)
                or _lanes_problem(nest, mark)
                or _predicates_problem(nest, mark, kind)
                or _codes_problem(nest, variable, mark)
            )
            if why is not None:
                return why, variable.name
    if kind == "gpu":
        return _kernel_problem(nest)
    return None


def _kind_problem(mark: d.Mark, kind: d.Kind) -> str | None:
    why = mark.NOT_ON.get(kind)
    return None if why is None else f"{mark} {why}"


def _layout_problem(variable: Variable, mark: d.Mark, kind: d.Kind) -> str | None:
    if not isinstance(mark, d.Cache) or mark.layout is None:
        return None
    if kind == "gpu" and variable.root == "batch":
        return None
    return (
        f"{mark} says how rows lie in a GPU's shared memory; leave the layout out "
        "for trees and for CPUs."
    )


def _reduce_problem(variable: Variable, mark: d.Mark) -> str | None:
    if not isinstance(mark, (d.AtomicReduce, d.SharedReduce, d.VectorReduce)):
        return None
    if variable.has(d.Parallel, d.GpuDimension):
        return None
    return (
        f'{mark} needs a loop whose iterations run at the same time; mark "'
        f'{variable.name}" with parallel or gpu_dimension, or leave it out.'
    )


def _lanes_problem(nest: Nest, mark: d.Mark) -> str | None:
    if not isinstance(mark, d.Vectorize):
        return None
    for option in nest.options:
        if (
            isinstance(option, d.TileNodes)
            and option.size > 1
            and option.kind != "complete"
        ):
            return (
                f"{mark} walks one node at a time in each lane, but {option} groups "
                "nodes; leave one of the two out."
            )
    if nest.variable(mark.index).root == "batch":
        return None
    for *outside, _ in nest.paths(mark.index):
        if any(v.root == "tree" for v in outside):
            return (
                f"{mark} takes one row through all trees at once; leave the loop over "
                "trees in one piece."
            )
        if not outside or outside[-1].mark(d.Quantize) is None:
            return (
                f"{mark} compares the bin codes of one row; mark the loop over rows "
                "right outside it with quantize."
            )
        for other in nest.variable(mark.index).marks:
            if not isinstance(other, d.Vectorize):
                return (
                    f"{mark} evaluates all trees at once, so {other} has nothing to "
                    "do; leave it out."
                )
    return None


def _predicates_problem(nest: Nest, mark: d.Mark, kind: d.Kind) -> str | None:
    """Check the loops around and inside a table of predicates."""
    if not isinstance(mark, d.CachePredicates):
        return _alone_on_gpu(nest, mark) if kind == "gpu" else None
    for path in nest.paths(mark.index):
        inside = path[path.index(nest.variable(mark.index)) + 1 :]
        rows = [v for v in inside if v.root == "batch"]
        if not rows:
            return (
                f'{mark} needs a block of rows inside "{mark.index}"; tile the batch '
                "and mark the outer loop."
            )
        if not isinstance(rows[0].count, int):
            return (
                f'{mark} needs a fixed number of rows inside "{mark.index}"; tile the '
                "batch with a positive size."
            )
        if len(inside) == len(rows):
            return f'{mark} needs a tree loop inside "{mark.index}".'
        if kind == "gpu" and not _packs_rows(inside):
            return (
                f"{mark} on a GPU needs the block's rows in two loops, innermost: one "
                "over threads, mapped to the block, and one vectorised loop over the "
                "rows of a thread; trees are in serial loops outside them."
            )
        if rows[-1].mark(d.Vectorize) is None:
            return (
                f"{mark} evaluates a block of rows at once; mark their loop "
                f'"{rows[-1].name}" with vectorize.'
            )
        for other in (other for variable in path for other in variable.marks):
            if isinstance(other, d.WalkStart):
                return (
                    f"{mark} replaces the walk by bit logic, so {other} has nothing to "
                    "do; leave it out."
                )
    return None


def _alone_on_gpu(nest: Nest, mark: d.Mark) -> str | None:
    """Reject vectorised rows on a GPU outside cache_predicates: lanes are threads."""
    if not isinstance(mark, d.Vectorize):
        return None
    for path in nest.paths(mark.index):
        if not any(variable.has(d.CachePredicates) for variable in path):
            return (
                f"{mark} on a GPU is for the rows that one thread packs into bits; "
                "mark the loop over their block with cache_predicates, or map the "
                "loop to threads."
            )
    return None


def _packs_rows(inside: tuple[Variable, ...]) -> bool:
    """Whether a block's loops are serial trees, then threads, then a thread's rows."""
    rows = [v for v in inside if v.root == "batch"]
    on_threads = [v for v in inside if v.has(d.GpuDimension)]
    return len(rows) == 2 and on_threads == rows[:1] and [*inside[-2:]] == rows


def _codes_problem(nest: Nest, variable: Variable, mark: d.Mark) -> str | None:
    """Check that the codes of one iteration belong to a block of rows."""
    if not isinstance(mark, d.Quantize):
        return None
    if not isinstance(variable.step, int):
        return (
            f'{mark} needs a fixed number of rows in one iteration of "{mark.index}"; '
            "tile the batch with a positive size."
        )
    for path in nest.paths():
        # The trees hold either codes or thresholds.
        rows = [v for v in path if v.root == "batch"]
        if not any(v.has(d.Quantize) for v in rows):
            return (
                f'{mark} is for all rows or none, and "{rows[0].name}" takes some '
                "without; mark a loop of every part of the batch."
            )
        if variable not in path:
            continue
        for one in path:
            other = one.mark(d.Quantize)
            if other is not None and other != mark:
                return f"{mark} comes with {other} in one nest; leave one of them out."
            cached = one.mark(d.CachePredicates)
            if cached is not None:
                return (
                    f"{mark} is for walks, and {cached} leaves none: it searches the "
                    "rows itself; leave one of the two out."
                )
    return None


def _kernel_problem(nest: Nest) -> tuple[str, str | None] | None:
    for path in nest.paths():
        if not any(variable.has(d.GpuDimension) for variable in path):
            return (
                "A schedule for a GPU needs at least one gpu_dimension around every "
                "walk.",
                path[-1].name,
            )
        found = _shared_problem(path) or _between_problem(path)
        if found is not None:
            return found
    return None


def _shared_problem(path: tuple[Variable, ...]) -> tuple[str, str] | None:
    """Check the caches on a path, which all threads of a block fill together."""
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
        why = together and _one_at_a_time(cache, together)
        if why:
            return why, name
        if threads is not None:
            return (
                f'{cache} is inside "{threads}", whose iterations are threads; all '
                "threads of a block fill shared memory together, so put it on a loop "
                "outside them.",
                name,
            )
        if variable.root == "batch" and not isinstance(variable.step, int):
            return (
                f"{cache} brings the rows of one iteration to shared memory, which "
                "needs a fixed number of them; tile the batch with a positive size.",
                name,
            )
    return None


def _between_problem(path: tuple[Variable, ...]) -> tuple[str, str] | None:
    """Reject a serial loop or a specialised one between two loops over the grid."""
    marks = [variable.mark(d.GpuDimension) for variable in path]
    grid = [k for k, m in enumerate(marks) if m and m.dimension.startswith("grid")]
    first, last = min(grid, default=0), max(grid, default=0)
    for variable, mark in zip(path[first:last], marks[first:last], strict=True):
        if mark is None:
            return (
                f'"{variable.name}" is a serial loop between loops over the grid, '
                "whose blocks all run at once; reorder it into the block.",
                variable.name,
            )
    for variable in path[:last]:
        special = variable.mark(d.Specialize)
        if special is not None and variable.root == "tree":
            return (
                f'{special} chooses code by depth, but "{path[last].name}" inside it '
                "is over the grid; reorder it outside.",
                variable.name,
            )
    return None


def copies_problem(
    loops: tuple[BoundLoop, ...], copies: int = 1, threads: int = 1
) -> tuple[str, str] | None:
    """Say which loop makes too many copies of a walk, or too many GPU threads."""
    for loop in loops:
        n_copies, n_threads, most = copies, threads, loop.max_trips
        if loop.has(d.Unroll):
            if most is None:
                return (
                    f'{d.Unroll(loop.name)} needs a loop of fixed length, but that of "'
                    f'{loop.name}" depends on the batch; tile it first.',
                    loop.name,
                )
            n_copies *= max(1, most)
        together = loop.mark(d.Interleave)
        n_copies *= 1 if together is None else together.factor or 1
        if n_copies > MAX_COPIES:
            return (
                f'The loops down to "{loop.name}" make {n_copies} copies of the walk '
                f"by unroll and interleave, more than {MAX_COPIES}; use smaller tiles.",
                loop.name,
            )
        if loop.gpu is not None and loop.gpu.startswith("block"):
            if most is None:
                return (
                    f"{d.GpuDimension(loop.name, loop.gpu)} needs a loop of fixed "
                    f'length, but that of "{loop.name}" depends on the batch; tile it '
                    "first.",
                    loop.name,
                )
            n_threads *= max(1, most)
        limit = MAX_GPU_TRIPS.get(loop.gpu or "")
        if loop.gpu is not None and limit is not None and (most or 0) > limit:
            return (
                f'{d.GpuDimension(loop.name, loop.gpu)}: "{loop.name}" has {most:,} '
                f"iterations, and that dimension takes {limit:,}; use larger tiles, or "
                f'"{loop.gpu[:-1]}x".',
                loop.name,
            )
        if n_threads > MAX_BLOCK_THREADS:
            return (
                f'The loops down to "{loop.name}" make blocks of {n_threads} threads, '
                f"more than {MAX_BLOCK_THREADS}; use smaller tiles.",
                loop.name,
            )
        found = copies_problem(loop.body, n_copies, n_threads)
        if found is not None:
            return found
    return None
