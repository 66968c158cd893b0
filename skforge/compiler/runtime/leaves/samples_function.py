"""The code that finds quantiles of the samples in a row's leaves; see :mod:`.samples`.

Samples are places in the order of all targets. To find the one of a rank, those up to a
place are counted, sixteen at once, for ever closer places: none are sorted. Weights
that differ from leaf to leaf give no ranks: they are summed in the order of places,
which bits mark.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from skforge.compiler.forest.leaf_payloads import LANES
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F64,
    I32,
    I64,
    BinaryOp,
    Buffer,
    Function,
    Value,
)
from skforge.compiler.ir.lir.types import Scalar, Vec

#: What is found of a row's samples: those of two neighbouring ranks; those around a
#: share of their number or of their weight; their mean by weight or one by one.
SampleStatistic: TypeAlias = Literal["ranks", "counts", "weights", "mean", "average"]

SIZES = (
    *("n_rows", "step", "n_trees", "n_outputs", "n_places", "n_quantiles"),
    "by_leaf",  # whether the samples of a leaf share its weight
    "single",  # whether each leaf has one sample
    "most",  # the most samples that a row may have
)

#: Numbers of an answer: both samples, the fraction of the way, and the weight below.
PARTS = 4

#: A place behind all others.
_BEHIND = (1 << 31) - 1


def function(statistic: SampleStatistic) -> Function:
    sizes = [Value(name, I64) for name in SIZES]
    n_rows, step, n_trees, n_outputs, n_places, n_quantiles = sizes[:6]
    by_leaf, single, most = sizes[6:]
    turn = Value("turn", F64)
    kinds = {"leaves": I32, "starts": I64, "places": I32}
    kinds |= dict.fromkeys(("quantiles", "values", "out"), F64)
    buffers = [Buffer(name, kind) for name, kind in kinds.items()]
    leaves, starts, places, quantiles, values, out = buffers
    some = Vec(I32, LANES)
    with Builder() as b, b.parallel((n_rows + (step - 1)) // step) as part:
        none, zero, one = b.const(0), b.const(0.0, F64), b.const(1.0, F64)

        def bounds(row: Value, t: Value, output: Value | int) -> tuple[Value, Value]:
            at = leaves[row * n_trees + t].to(I64) * n_outputs + output
            begin = b.either(single.ne(0), lambda: at, lambda: starts[at])
            return begin, b.either(single.ne(0), lambda: at + 1, lambda: starts[at + 1])

        def weighed(row: Value, output: Value) -> Value:
            """Add the weight of each sample to its place; return how many there are."""
            whole, size = [none], [none]
            with b.loop(b.select(by_leaf.ne(0), n_trees, none), carry=whole) as t:
                begin, end = bounds(row, t, 0)
                whole[0] = whole[0] + (end - begin)
            with b.loop(n_trees, carry=size) as t:
                begin, end = bounds(row, t, output)
                weight = one / (end - begin).to(F64) * whole[0].to(F64)
                weight = weight / n_trees.to(F64)
                weight = b.select(by_leaf.ne(0), weight, one)
                with b.loop(begin, end) as k:
                    at = places[k].to(I64)
                    weights[at] = weights[at] + weight
                    words[at >> 6] = words[at >> 6] | (b.const(1) << (at & 63))
                size[0] = size[0] + (end - begin)
            return size[0]

        def held_samples(row: Value, output: Value) -> Value:
            """Put the places of a row's samples side by side; return how many."""
            size = [none]
            with b.loop(n_trees, carry=size) as t:
                begin, end = bounds(row, t, output)
                with b.loop(begin, end, LANES) as k:
                    held[size[0] + (k - begin)] = places[k, some]
                size[0] = size[0] + (end - begin)
            held[size[0]] = b.const(_BEHIND, some)
            return size[0]

        def counted(size: Value, limit: Value) -> Value:
            zeros, ones = b.const(0, some), b.const(1, some)
            limits, total = b.splat(limit.to(I32), LANES), [zeros]
            with b.loop(0, size, LANES, carry=total) as k:
                within = held[k, some] <= limits
                total[0] = total[0] + b.select(within, ones, zeros)
            return over_lanes("add", total[0])

        def over_lanes(op: BinaryOp, a: Value) -> Value:
            total = b.extract(a, 0)
            for lane in range(1, LANES):
                total = b.binary(op, total, b.extract(a, lane))
            return total.to(I64)

        def find(size: Value, rank: Value) -> tuple[Value, Value, Value]:
            """Return the place of a rank, and how many lie before it and up to it."""
            state = [none, n_places - 1, none, size]
            with b.repeat(lambda: state[0] < state[1], state):
                first, last, before, upto = state
                place = (first + last) >> 1
                count = counted(size, place)
                beyond = count > rank
                state[0] = b.select(beyond, first, place + 1)
                state[1] = b.select(beyond, place, last)
                state[2] = b.select(beyond, before, count)
                state[3] = b.select(beyond, count, upto)
            return state[0], state[2], state[3]

        def neighbour(size: Value, limit: Value, above: bool) -> Value:
            op: BinaryOp = "min" if above else "max"
            limits, default = b.splat(limit.to(I32), LANES), _BEHIND if above else 0
            best = [b.const(default, some)]
            with b.loop(0, size, LANES, carry=best) as k:
                x = held[k, some]
                chosen = b.select(x > limits if above else x < limits, x, default)
                best[0] = b.binary(op, best[0], chosen)
            return over_lanes(op, best[0])

        def give(to: Value, base: Value, low: Value, high: Value, *rest: Value) -> None:
            for k, number in enumerate(
                (values[base + low], values[base + high], *rest)
            ):
                out[to + k] = number

        def give_share(
            to: Value, base: Value, low: Value, high: Value, ends: Value, *facts: Value
        ) -> None:
            """Give the samples around a share; ``ends``: there is none behind high."""
            q, total, below, weight = facts
            low_p, high_p = ((w - 1.0) / total for w in (below, below + weight))
            low_p = b.select(low_p < q, low_p, q)
            high_p = b.select(high_p > q, high_p, q)
            high_p = low_p + (high_p - low_p) / weight
            fraction = (q - low_p) / (high_p - low_p)
            reaches = ends | (q >= high_p) | (fraction >= 1.0)
            low = b.select(reaches, high, low)
            high = b.select(~reaches & (fraction <= 0.0), low, high)
            give(to, base, low, high, fraction, below)

        def by_ranks(size: Value, q: Value, to: Value, base: Value) -> None:
            index = q * (size - 1).to(F64) + turn - turn
            rank = index.to(I64).min(size - 1)
            fraction = index - rank.to(F64)
            low, _, upto = find(size, rank)
            apart = (fraction > 0.0) & (upto <= rank + 1)
            high = b.either(apart, lambda: neighbour(size, low, True), lambda: low)
            give(to, base, low, high, fraction, (rank + 1).to(F64))

        def by_counts(size: Value, q: Value, to: Value, base: Value) -> None:
            total = (size - 1).to(F64)
            # the least target of all is below, even if it is no sample of the row
            rank = (q * total + 1.0).to(I64).max(counted(size, none))
            high, below, upto = find(size, rank.min(size - 1))
            low = neighbour(size, high, False)
            facts = q, total, below.to(F64), (upto - below).to(F64)
            give_share(to, base, low, high, rank >= size, *facts)

        def by_weights(base: Value, to: Value) -> None:
            words[none] = words[none] | 1  # see by_counts
            listed = [none, zero, zero]
            with b.loop(n_words, carry=listed) as k:
                bits = [words[k], *listed]
                with b.repeat(lambda: bits[0].ne(0), bits):
                    place = k * 64 + b.count_zeros(bits[0])
                    weight = weights[place]
                    weights[place] = zero
                    number, total = bits[1], bits[2] + weight
                    found[number], own[number], sums[number] = place, weight, total
                    product = bits[3] + values[base + place] * weight
                    bits[:] = bits[0] & (bits[0] - 1), number + 1, total, product
                words[k] = none
                listed[:] = bits[1:]
            n_found, whole, product = listed
            if statistic == "mean":
                out[to] = product / whole
                return
            total = whole + 1.0 - 2.0
            with b.loop(n_quantiles) as number:
                q = quantiles[number]
                p, state = q * total + 1.0, [b.const(1)]
                last = n_found - 1

                def behind() -> Value:
                    return (state[0] < n_found) & (sums[state[0].min(last)] <= p)

                with b.repeat(behind, state):
                    state[0] = state[0] + 1
                at = state[0].min(last)
                under = (at - 1).max(none)
                facts = state[0] >= n_found, q, total, sums[under], own[at]
                give_share(to + number * PARTS, base, found[under], found[at], *facts)

        def averaged(row: Value, output: Value, base: Value) -> Value:
            total = [none, zero]
            with b.loop(n_trees, carry=total) as t:
                begin, end = bounds(row, t, output)
                part = [total[1]]
                with b.loop(begin, end, carry=part) as k:
                    part[0] = part[0] + values[base + places[k].to(I64)]
                total[:] = total[0] + (end - begin), part[0]
            return total[1] / total[0].to(F64)

        def cleared(hint: str, kind: Scalar, n: Value) -> Buffer:
            buffer = b.alloc(hint, kind, n)
            with b.loop(n) as k:
                buffer[k] = 0.0 if kind.is_float else 0
            return buffer

        if statistic in ("ranks", "counts"):
            held = b.alloc("held", I32, most + LANES)
        elif statistic != "average":
            n_words = (n_places >> 6) + 1
            weights, words = (
                cleared("weights", F64, n_places),
                cleared("words", I64, n_words),
            )
            found = b.alloc("found", I64, n_places + 1)
            own, sums = (b.alloc(name, F64, n_places + 1) for name in ("own", "sums"))
        first = part * step
        rows = b.loop(first, (first + step).min(n_rows))
        with rows as row, b.loop(n_outputs) as output:
            base = output * n_places
            to = (row * n_outputs + output) * n_quantiles * PARTS
            if statistic == "average":
                out[to] = averaged(row, output, base)
            elif statistic in ("ranks", "counts"):
                size = held_samples(row, output)
                how = by_ranks if statistic == "ranks" else by_counts
                with b.when(size > 0), b.loop(n_quantiles) as number:
                    how(size, quantiles[number], to + number * PARTS, base)
            else:
                with b.when(weighed(row, output) > 0):
                    by_weights(base, to)
    params: tuple[Value | Buffer, ...] = (*sizes, turn, *buffers)
    return Function(f"skf_leaf_{statistic}", params, b.finish())
