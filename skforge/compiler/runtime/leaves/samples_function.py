"""The code that finds quantiles of the samples in a row's leaves; see :mod:`.samples`.

Samples are places in the order of all targets. To find the one of a rank, those up to a
place are counted, a register at once, for ever closer places: none are sorted. Weights
that differ from leaf to leaf give no ranks: they are summed in the order of places,
which bits mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from skforge.compiler.forest.leaf_payloads import LANES
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F64,
    I16,
    I32,
    I64,
    BinaryOp,
    Buffer,
    Function,
    Value,
)
from skforge.compiler.ir.lir.types import Vec

#: What is found of a row's samples: those of two neighbouring ranks; those around a
#: share of their number or, if those of a leaf share its weight, of their weight; means
#: that are added up by place or, for the average, by leaf.
#: "singles" are ranks of one sample a leaf, between which NumPy's rules hold.
SampleStatistic: TypeAlias = Literal[
    "singles", "ranks", "counts", "weights", "mean", "weighted_mean", "average"
]

#: Rows that a thread takes at a time; registers of samples that are compared before the
#: next test of a loop.
ROWS, TOGETHER = 64, 4

#: The least place and one behind all others, as they are stored.
RANGE = {I16: (-(1 << 15), (1 << 15) - 1), I32: (0, (1 << 31) - 1)}

SIZES = (
    *("n_rows", "n_trees", "n_outputs", "n_places", "n_quantiles"),
    "most",  # the most samples that a row may have
    "style",  # of INTERPOLATIONS
)


def function(statistic: SampleStatistic, narrow: bool) -> Function:
    """Return the function for places of 16 bits, if they are ``narrow``, or of 32."""
    element = I16 if narrow else I32
    least, behind = RANGE[element]
    sizes = [Value(name, I64) for name in SIZES]
    n_rows, n_trees, n_outputs, n_places, n_quantiles = sizes[:5]
    most, style = sizes[5:]
    single, by_leaf = statistic == "singles", statistic in ("weights", "weighted_mean")
    kinds = {"leaves": I32, "starts": I64, "places": element}
    kinds |= dict.fromkeys(("quantiles", "values", "out"), F64)
    buffers = [Buffer(name, kind) for name, kind in kinds.items()]
    leaves, starts, places, quantiles, values, out = buffers
    some = Vec(element, LANES)
    with Builder() as b, b.parallel((n_rows + (ROWS - 1)) // ROWS) as part:
        none, zero, one = b.const(0), b.const(0.0, F64), b.const(1.0, F64)

        def place_at(k: Value) -> Value:
            return places[k].to(I64) - least

        @contextmanager
        def lists(
            row: Value, output: Value | int, carry: list[Value]
        ) -> Iterator[tuple[Value, Value]]:
            """Open a loop over a row's leaves; yield where each one's samples lie."""
            with b.loop(n_trees, carry=carry) as t:
                at = leaves[row * n_trees + t].to(I64) * n_outputs + output
                yield (at, at + 1) if single else (starts[at], starts[at + 1])

        # ------------------------------------------- samples side by side, by rank

        def hold(row: Value, output: Value) -> Value:
            """Put the places of a row's samples side by side; return how many."""
            size = [none]
            with lists(row, output, size) as (begin, end):
                if single:
                    held[size[0]] = places[begin]
                else:
                    with b.loop(begin, end, LANES) as k:
                        held[size[0] + (k - begin)] = places[k, some]
                size[0] = size[0] + (end - begin)
            for register in range(TOGETHER):
                held[size[0] + register * LANES] = b.const(behind, some)
            return size[0]

        def folded(
            op: BinaryOp, size: Value, first: int, of: Callable[[Value], Value]
        ) -> Value:
            """Return what ``op`` makes of numbers ``of`` all samples."""
            parts = [b.const(first, some)] * TOGETHER
            with b.loop(0, size, TOGETHER * LANES, carry=parts) as k:
                for i, part in enumerate(parts):
                    parts[i] = b.binary(op, part, of(held[k + i * LANES, some]))
            a, *others = parts
            for other in others:
                a = b.binary(op, a, other)
            for n in (LANES >> k for k in range(1, LANES.bit_length())):
                halves = (b.shuffle(a, a, range(k, k + n)) for k in (0, n))
                a = b.binary(op, *halves)
            return b.extract(a, 0).to(I64)

        def counted(size: Value, limit: Value) -> Value:
            """Return how many samples lie up to a place."""
            last, ones = b.splat((limit + least).to(element), LANES), b.const(1, some)
            return folded("add", size, 0, lambda x: b.select(x <= last, ones, 0))

        def before(size: Value, limit: Value) -> Value:
            """Return the last sample before a place, or the least of all targets."""
            end = b.splat((limit + least).to(element), LANES)
            last = folded("max", size, least, lambda x: b.select(x < end, x, least))
            return last - least

        def find(size: Value, rank: Value) -> tuple[Value, Value, Value]:
            """Return the place of a rank, and how many lie before it and up to it."""
            state = [none, n_places - 1, none, size]
            with b.repeat(lambda: state[0] < state[1], state):
                first, last, under, upto = state
                place = (first + last) >> 1
                count = counted(size, place)
                beyond = count > rank
                state[0] = b.select(beyond, first, place + 1)
                state[1] = b.select(beyond, place, last)
                state[2] = b.select(beyond, under, count)
                state[3] = b.select(beyond, count, upto)
            return state[0], state[2], state[3]

        @contextmanager
        def each_quantile(size: Value, to: Value) -> Iterator[tuple[Value, Value]]:
            with b.when(size > 0), b.loop(n_quantiles) as k:
                yield quantiles[k], to + k

        def ranks(row: Value, output: Value, to: Value, base: Value) -> None:
            size = hold(row, output)
            with each_quantile(size, to) as (q, at):
                index = q * (size - 1).to(F64)
                index = index if single else index + 1.0 - 1.0
                rank = index.to(I64).min(size - 1)
                high, under, _ = find(size, (rank + 1).min(size - 1))
                low = b.select(under <= rank, high, before(size, high))
                give(at, base, low, high, index - rank.to(F64), (rank + 1).to(F64))

        def counts(row: Value, output: Value, to: Value, base: Value) -> None:
            size = hold(row, output)
            total = (size - 1).to(F64)
            with each_quantile(size, to) as (q, at):
                # the least target of all is below, even if it is no sample of the row
                rank = (q * total + 1.0).to(I64).max(counted(size, none))
                high, under, upto = find(size, rank.min(size - 1))
                facts = q, total, under.to(F64), (upto - under).to(F64)
                give_share(at, base, before(size, high), high, rank >= size, *facts)

        # ------------------------------------------------------ weights, by place

        def weigh(row: Value, output: Value) -> Value:
            """Add the weight of each sample to its place; return how many there are."""
            size = [none]
            with lists(row, output, size) as (begin, end):
                size[0] = size[0] + (end - begin)
            with lists(row, output, []) as (begin, end):
                weight = b.const(1, weights.element)
                if by_leaf:
                    weight = one / (end - begin).to(F64) * size[0].to(F64)
                    weight = weight / n_trees.to(F64)
                with b.loop(begin, end) as k:
                    at = place_at(k)
                    weights[at] = weights[at] + weight
                    words[at >> 6] = words[at >> 6] | (b.const(1) << (at & 63))
            return size[0]

        @contextmanager
        def in_order(carry: list[Value]) -> Iterator[tuple[Value, Value]]:
            """Open a loop over a row's places; yield each and its weight, taken off."""
            with b.loop(n_words, carry=carry) as k:
                state = [words[k], *carry]
                words[k] = none
                with b.repeat(lambda: state[0].ne(0), state):
                    bits, *carry[:] = state
                    place = k * 64 + b.count_zeros(bits)
                    weight = weights[place].to(F64)
                    weights[place] = 0
                    yield place, weight
                    state[:] = bits & (bits - 1), *carry
                carry[:] = state[1:]

        def shares(row: Value, output: Value, to: Value, base: Value) -> None:
            with b.when(weigh(row, output) > 0):
                words[none] = words[none] | 1  # see counts
                listed = [none, zero]
                with in_order(listed) as (place, weight):
                    number, whole = listed[0], listed[1] + weight
                    found[number], own[number], sums[number] = place, weight, whole
                    listed[:] = number + 1, whole
                n_found, whole = listed
                total, last = whole + 1.0 - 2.0, n_found - 1
                with b.loop(n_quantiles) as k:
                    q, state = quantiles[k], [b.const(1)]
                    p = q * total + 1.0

                    def behind() -> Value:
                        return (state[0] < n_found) & (sums[state[0].min(last)] <= p)

                    with b.repeat(behind, state):
                        state[0] = state[0] + 1
                    at = state[0].min(last)
                    under = (at - 1).max(none)
                    facts = state[0] >= n_found, q, total, sums[under], own[at]
                    give_share(to + k, base, found[under], found[at], *facts)

        def mean(row: Value, output: Value, to: Value, base: Value) -> None:
            with b.when(weigh(row, output) > 0):
                sums = [zero, zero]
                with in_order(sums) as (place, weight):
                    sums[:] = sums[0] + weight, sums[1] + values[base + place] * weight
                out[to] = sums[1] / sums[0]

        def average(row: Value, output: Value, to: Value, base: Value) -> None:
            total = [none, zero]
            with lists(row, output, total) as (begin, end):
                part = [total[1]]
                with b.loop(begin, end, carry=part) as k:
                    part[0] = part[0] + values[base + place_at(k)]
                total[:] = total[0] + (end - begin), part[0]
            out[to] = total[1] / total[0].to(F64)

        # ------------------------------------------------- numbers between samples

        def give(
            to: Value, base: Value, low: Value, high: Value, way: Value, below: Value
        ) -> None:
            """Write the number that lies a part of the way between two samples."""
            low, high = values[base + low], values[base + high]
            step, half = high - low, below * 0.5
            near, even = b.magnitude(way - 0.5) < 1e-16, half.to(I64).to(F64).eq(half)
            upper = (near & even) | (~near & (way >= 0.5))
            same = (way <= 0.0) | low.eq(high)
            line, middle = low + way * step, (low + high) * 0.5
            if single:  # NumPy also computes with equal samples: -0.0 may become 0.0
                line = b.select(way >= 0.5, high - step * (one - way), line)
                middle = b.select(way > 0.0, high - step * 0.5, line)
                same = same & style.ne(0) & style.ne(3)
            number = line
            others = low, high, middle, b.select(upper, high, low)
            for k, other in enumerate(others, 1):
                number = b.select(style.eq(k), other, number)
            out[to] = b.select(same, low, number)

        def give_share(
            to: Value, base: Value, low: Value, high: Value, ends: Value, *facts: Value
        ) -> None:
            """Write the number at a share; ``ends``: there is none behind high."""
            q, total, below, weight = facts
            low_p, high_p = ((w - 1.0) / total for w in (below, below + weight))
            low_p = b.select(low_p < q, low_p, q)
            high_p = b.select(high_p > q, high_p, q)
            high_p = low_p + (high_p - low_p) / weight
            way = (q - low_p) / (high_p - low_p)
            low = b.select(ends | (q >= high_p) | (way >= 1.0), high, low)
            give(to, base, low, high, way, below)

        # statistics, and what a thread keeps for them
        compute = {
            **{"singles": ranks, "ranks": ranks, "counts": counts, "weights": shares},
            **{"mean": mean, "weighted_mean": mean, "average": average},
        }[statistic]
        if statistic in ("singles", "ranks", "counts"):
            held = b.alloc("held", element, most + TOGETHER * LANES)
        elif statistic != "average":
            n_words = (n_places >> 6) + 1
            weights = b.alloc("weights", F64 if by_leaf else I32, n_places)
            words = b.alloc("words", I64, n_words)
            for buffer, n in ((weights, n_places), (words, n_words)):
                with b.loop(n) as k:
                    buffer[k] = 0
        if statistic == "weights":
            found = b.alloc("found", I64, n_places + 1)
            own, sums = (b.alloc(name, F64, n_places + 1) for name in ("own", "sums"))
        first = part * ROWS
        rows = b.loop(first, (first + ROWS).min(n_rows))
        with rows as row, b.loop(n_outputs) as output:
            to = (row * n_outputs + output) * n_quantiles
            compute(row, output, to, output * n_places)
    params: tuple[Value | Buffer, ...] = (*sizes, *buffers)
    return Function(f"skf_leaf_{statistic}", params, b.finish())
