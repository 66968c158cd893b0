"""Applies one directive to an abstract loop nest, or says why that is illegal."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from skforge.schedule import directives as d
from skforge.schedule import nest as nests
from skforge.schedule.rules import broken_rules, mark_problems

# Sums of loop variables must stay far below the limits of 64 bits.
MAX_STEP = 2**40


def apply_all(
    directives: tuple[d.Directive, ...], n_trees: int | None = None
) -> nests.Nest:
    nest = nests.root_nest(n_trees)
    for directive in directives:
        nest = apply(nest, directive)
    return nest


# Directives are applied one by one while a schedule is written, so each prefix has been
# checked just before.
@lru_cache(maxsize=4096)
def nest_of(directives: tuple[d.Directive, ...]) -> nests.Nest:
    if not directives:
        return nests.root_nest()
    if len(directives) > 50:  # too deep for recursion
        return apply_all(directives)
    return apply(nest_of(directives[:-1]), directives[-1])


def apply(nest: nests.Nest, directive: d.Directive) -> nests.Nest:
    why = d.problem(directive)
    if why is not None:
        nest.refuse(why, getattr(directive, "index", None))
    match directive:
        case d.Tile():
            new = _tile(nest, directive)
        case d.Split():
            new = _split(nest, directive)
        case d.Reorder():
            new = _reorder(nest, directive)
        case d.Option():
            new = _option(nest, directive)
        case d.Mark():
            new = _mark(nest, directive)
        case _:
            raise AssertionError(f"{directive!r} is neither a mark nor an option")
    for why, name in broken_rules(new, directive):
        drawn = new if isinstance(directive, d.Reorder) else nest
        drawn.refuse(why, name)
    return new


def _find(nest: nests.Nest, directive: d.Directive, index: str) -> nests.LoopVariable:
    for variable in nest.variables:
        if variable.name == index:
            return variable
    names = [f'"{variable.name}"' for variable in nest.variables]
    loops = f"the loops are {_and(names)}."
    for old in nest.modifiers:
        if old.index == index:
            outer, inner = _new_names(old)
            nest.refuse(
                f'{directive} names a loop that is gone: {old} replaced "{index}" by '
                f'"{outer}" and "{inner}"; {loops}'
            )
    nest.refuse(f'{directive} names "{index}", which is not a loop; {loops}')


def _new_names(modifier: d.Tile | d.Split) -> list[object]:
    return d.arguments(modifier)[1:3]


def _and(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1]


def _check_replaceable(
    nest: nests.Nest, modifier: d.Tile | d.Split, variable: nests.LoopVariable
) -> None:
    if variable.marks:
        verb = d.name_of(modifier)
        nest.refuse(
            f'{modifier} replaces "{variable.name}", which {variable.marks[0]} has '
            f"already marked; {verb} first, then mark one of the new loops.",
            variable.name,
        )
    for name in map(str, _new_names(modifier)):
        if name in nests.ROOTS:
            nest.refuse(
                f'{modifier} cannot name a loop "{name}", because one of the two '
                "original loops has that name.",
                name,
            )
        for old in nest.modifiers:
            if name in _new_names(old):
                nest.refuse(
                    f'{modifier} cannot name a loop "{name}" again, because {old} '
                    "already made a loop of that name.",
                    name,
                )


def _tile(nest: nests.Nest, tile: d.Tile) -> nests.Nest:
    old = _find(nest, tile, tile.index)
    _check_replaceable(nest, tile, old)
    if tile.size > 0:
        size: nests.Extent = tile.size
        blocks = nests.ceil_div(old.count, tile.size)
    elif old.root == "batch" and isinstance(old.count, nests.Open):
        nest.refuse(
            f'{tile} needs the number of iterations of "{tile.index}", which is not '
            "known after a split of the batch; use a positive size.",
            tile.index,
        )
    else:
        size = nests.ceil_div(old.count, -tile.size)
        blocks = -tile.size
    rest = size
    if isinstance(size, int) and isinstance(old.count, int):
        rest = min(size, old.count)
    step = nests.times(old.step, size)
    if isinstance(step, int) and step > MAX_STEP:
        nest.refuse(
            f'{tile} makes blocks of {step} iterations of "{old.root}", but at most '
            f"{MAX_STEP} are allowed.",
            tile.index,
        )
    outer = nests.LoopVariable(tile.outer, old.root, old.start, step, blocks)
    inner = nests.LoopVariable(tile.inner, old.root, 0, old.step, rest)
    limits = [nests.Limit(frozenset({tile.inner}), step)]
    for limit in nest.limits:
        names = limit.names
        if tile.index in names:
            names = names - {tile.index} | {tile.outer, tile.inner}
        limits.append(nests.Limit(names, limit.limit))
    return _exchanged(nest, tile, old, (outer, inner), limits)


def _split(nest: nests.Nest, split: d.Split) -> nests.Nest:
    old = _find(nest, split, split.index)
    _check_replaceable(nest, split, old)
    step = old.step
    if isinstance(step, int):
        if split.at % step:
            nest.refuse(
                f'{split} cuts an iteration of "{split.index}" in two, which counts in '
                f"steps of {step}; split at a multiple of {step}.",
                split.index,
            )
        before: nests.Extent = split.at // step
    elif old.root == "batch":
        nest.refuse(
            f'{split} needs a fixed step, but the step of "{split.index}" depends on '
            "the batch length; tile it with a positive size.",
            split.index,
        )
    else:
        before = nests.Open(f"{split.at} / {step}")
    extent = _extent(nest, split.index)
    if extent is not None and split.at >= extent:
        unit = "row" if old.root == "batch" else "tree"
        units = unit if extent == 1 else f"{unit}s"
        nest.refuse(
            f'{split} leaves nothing for "{split.second}": "{split.index}" goes over '
            f"{extent} {units}; split at less than that, or leave it out.",
            split.index,
        )
    if isinstance(old.count, int) and isinstance(before, int):
        after: nests.Extent = old.count - before
    else:
        after = nests.Open(f"{old.count} - {before}")
    middle = old.start + split.at
    first = nests.LoopVariable(split.first, old.root, old.start, old.step, before)
    second = nests.LoopVariable(split.second, old.root, middle, old.step, after)
    limits = [nests.Limit(frozenset({split.first}), middle)]
    for limit in nest.limits:
        if split.index not in limit.names:
            limits.append(limit)
            continue
        rest = limit.names - {split.index}
        limits.append(nests.Limit(rest | {split.first}, limit.limit))
        limits.append(nests.Limit(rest | {split.second}, limit.limit))
    return _exchanged(nest, split, old, (first, second), limits)


def _extent(nest: nests.Nest, name: str) -> int | None:
    extents = []
    for path in nests.paths(nest.loops):
        if name in path:
            limits = [
                limit.limit - sum(nest.variable(n).start for n in limit.names)
                for limit in nest.limits
                if name in limit.names and limit.names.issubset(path)
                if isinstance(limit.limit, int)
            ]
            if not limits:
                return None
            extents.append(min(limits))
    return max(extents, default=None)


def _exchanged(
    nest: nests.Nest,
    modifier: d.Tile | d.Split,
    old: nests.LoopVariable,
    new: tuple[nests.LoopVariable, nests.LoopVariable],
    limits: list[nests.Limit],
) -> nests.Nest:
    at = nest.variables.index(old)
    first, second = (variable.name for variable in new)

    def replaced(loop: nests.ScheduledLoop) -> tuple[nests.ScheduledLoop, ...]:
        body = inside(loop.body)
        if loop.name != old.name:
            return (nests.ScheduledLoop(loop.name, body),)
        if isinstance(modifier, d.Tile):
            return (nests.ScheduledLoop(first, (nests.ScheduledLoop(second, body),)),)
        return nests.ScheduledLoop(first, body), nests.ScheduledLoop(second, body)

    def inside(
        loops: tuple[nests.ScheduledLoop, ...],
    ) -> tuple[nests.ScheduledLoop, ...]:
        return tuple(part for loop in loops for part in replaced(loop))

    return replace(
        nest,
        loops=inside(nest.loops),
        variables=(*nest.variables[:at], *new, *nest.variables[at + 1 :]),
        limits=tuple(limits),
        modifiers=(*nest.modifiers, modifier),
    )


def _reorder(nest: nests.Nest, reorder: d.Reorder) -> nests.Nest:
    for index in reorder.indices:
        _find(nest, reorder, index)
    wanted = frozenset(reorder.indices)
    together = [path for path in nests.paths(nest.loops) if wanted.issubset(path)]
    if not together:
        first, second = _strangers(nest, reorder.indices)
        nest.refuse(
            f"{reorder} needs loops nested in each other, but neither of "
            f'"{first}" and "{second}" is inside the other.',
            second,
        )
    for path in together:
        span = path[min(map(path.index, wanted)) : max(map(path.index, wanted)) + 1]
        for name in span:
            if name not in wanted:
                nest.refuse(
                    f'{reorder} needs loops directly inside each other, but "{name}" '
                    f'lies between "{span[0]}" and "{span[-1]}".',
                    name,
                )
    return replace(nest, loops=_permute(nest, nest.loops, reorder))


def _strangers(nest: nests.Nest, indices: tuple[str, ...]) -> tuple[str, str]:
    for place, second in enumerate(indices):
        for first in indices[:place]:
            if not any(
                first in path and second in path for path in nests.paths(nest.loops)
            ):
                return first, second
    return indices[0], indices[-1]


def _permute(
    nest: nests.Nest, loops: tuple[nests.ScheduledLoop, ...], reorder: d.Reorder
) -> tuple[nests.ScheduledLoop, ...]:
    result = []
    for loop in loops:
        chain = _chain(nest, loop, reorder)
        if len(chain) < len(reorder.indices):
            result.append(
                nests.ScheduledLoop(loop.name, _permute(nest, loop.body, reorder))
            )
            continue
        body = chain[-1].body
        for name in reversed(reorder.indices):
            body = (nests.ScheduledLoop(name, body),)
        result.extend(body)
    return tuple(result)


def _chain(
    nest: nests.Nest, loop: nests.ScheduledLoop, reorder: d.Reorder
) -> list[nests.ScheduledLoop]:
    chain: list[nests.ScheduledLoop] = []
    while loop.name in reorder.indices:
        chain.append(loop)
        if len(chain) == len(reorder.indices) or not loop.body:
            break
        inside = [inner for inner in loop.body if inner.name in reorder.indices]
        if inside and len(loop.body) > 1:
            names = [f'"{inner.name}"' for inner in loop.body]
            nest.refuse(
                f'{reorder} needs perfectly nested loops, but "{loop.name}" contains '
                f"{_and(names)}.",
                loop.name,
            )
        loop = loop.body[0]
    return chain


def _option(nest: nests.Nest, option: d.Option) -> nests.Nest:
    for old in nest.options:
        if type(old) is type(option):
            nest.refuse(
                f"{option} comes after {old}, but a schedule can have only one of them."
            )
    return replace(nest, options=(*nest.options, option))


def _mark(nest: nests.Nest, mark: d.Mark) -> nests.Nest:
    variable = _find(nest, mark, mark.index)
    for why in mark_problems(nest, variable, mark):
        nest.refuse(why, mark.index)
    marked = replace(variable, marks=(*variable.marks, mark))
    variables = tuple(marked if v is variable else v for v in nest.variables)
    return replace(nest, variables=variables)
