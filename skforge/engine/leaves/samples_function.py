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

from skforge.compiler.ir.lir.builder import Builder, b
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
from skforge.forest.leaf_payloads import LANES

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
    return _STATISTICS[statistic](statistic, narrow).function()


class _Samples:
    """Writes a function; subclasses say what is found, and what a thread keeps."""

    def __init__(self, statistic: SampleStatistic, narrow: bool) -> None:
        self.statistic = statistic
        self.single = statistic == "singles"
        self.by_leaf = statistic in ("weights", "weighted_mean")
        self.element = I16 if narrow else I32
        self.least, self.behind = RANGE[self.element]
        self.sizes = [Value(name, I64) for name in SIZES]
        self.n_rows, self.n_trees, self.n_outputs, self.n_places = self.sizes[:4]
        self.n_quantiles, self.most, self.style = self.sizes[4:]
        kinds = {"leaves": I32, "starts": I64, "places": self.element}
        kinds |= dict.fromkeys(("quantiles", "values", "out"), F64)
        self.buffers = [Buffer(name, kind) for name, kind in kinds.items()]
        self.leaves, self.starts, self.places = self.buffers[:3]
        self.quantiles, self.values, self.out = self.buffers[3:]

    def function(self) -> Function:
        with (
            Builder() as builder,
            b.parallel((self.n_rows + (ROWS - 1)) // ROWS) as part,
        ):
            self.none, self.zero, self.one = (
                b.const(0),
                b.const(0.0, F64),
                b.const(1.0, F64),
            )
            self.allocate()
            first = part * ROWS
            rows = b.loop(first, (first + ROWS).min(self.n_rows))
            with rows as row, b.loop(self.n_outputs) as output:
                to = (row * self.n_outputs + output) * self.n_quantiles
                self.compute(row, output, to, output * self.n_places)
        params: tuple[Value | Buffer, ...] = (*self.sizes, *self.buffers)
        return Function(f"skf_leaf_{self.statistic}", params, builder.finish())

    def allocate(self) -> None:
        """Allocate what a thread keeps of a row."""

    def compute(self, row: Value, output: Value, to: Value, base: Value) -> None:
        """Write a row's answers; its values begin at ``base``."""
        raise NotImplementedError

    def place_at(self, k: Value) -> Value:
        return self.places[k].to(I64) - self.least

    @contextmanager
    def lists(
        self, row: Value, output: Value | int, carry: list[Value]
    ) -> Iterator[tuple[Value, Value]]:
        """Open a loop over a row's leaves; yield where each one's samples lie."""
        with b.loop(self.n_trees, carry=carry) as t:
            leaf = self.leaves[row * self.n_trees + t]
            at = leaf.to(I64) * self.n_outputs + output
            yield (
                (at, at + 1) if self.single else (self.starts[at], self.starts[at + 1])
            )

    def give(
        self, to: Value, base: Value, low: Value, high: Value, way: Value, below: Value
    ) -> None:
        """Write the number that lies a part of the way between two samples."""
        style = self.style
        low, high = self.values[base + low], self.values[base + high]
        step, half = high - low, below * 0.5
        near, even = b.magnitude(way - 0.5) < 1e-16, half.to(I64).to(F64).eq(half)
        upper = (near & even) | (~near & (way >= 0.5))
        same = (way <= 0.0) | low.eq(high)
        line, middle = low + way * step, (low + high) * 0.5
        if self.single:  # NumPy also computes with equal samples: -0.0 may become 0.0
            line = b.select(way >= 0.5, high - step * (self.one - way), line)
            middle = b.select(way > 0.0, high - step * 0.5, line)
            same = same & style.ne(0) & style.ne(3)
        number = line
        others = low, high, middle, b.select(upper, high, low)
        for k, other in enumerate(others, 1):
            number = b.select(style.eq(k), other, number)
        self.out[to] = b.select(same, low, number)

    def give_share(
        self,
        to: Value,
        base: Value,
        low: Value,
        high: Value,
        ends: Value,
        *facts: Value,
    ) -> None:
        """Write the number at a share; ``ends``: there is none behind high."""
        q, total, below, weight = facts
        low_p, high_p = ((w - 1.0) / total for w in (below, below + weight))
        low_p = b.select(low_p < q, low_p, q)
        high_p = b.select(high_p > q, high_p, q)
        high_p = low_p + (high_p - low_p) / weight
        way = (q - low_p) / (high_p - low_p)
        low = b.select(ends | (q >= high_p) | (way >= 1.0), high, low)
        self.give(to, base, low, high, way, below)


class _SampleRanks(_Samples):
    """Puts the places of a row's samples side by side, and finds those of ranks."""

    def __init__(self, statistic: SampleStatistic, narrow: bool) -> None:
        super().__init__(statistic, narrow)
        self.some = Vec(self.element, LANES)

    def allocate(self) -> None:
        self.held = b.alloc("held", self.element, self.most + TOGETHER * LANES)

    def hold(self, row: Value, output: Value) -> Value:
        """Put the places of a row's samples side by side; return how many."""
        size = [self.none]
        with self.lists(row, output, size) as (begin, end):
            if self.single:
                self.held[size[0]] = self.places[begin]
            else:
                with b.loop(begin, end, LANES) as k:
                    self.held[size[0] + (k - begin)] = self.places[k, self.some]
            size[0] = size[0] + (end - begin)
        for register in range(TOGETHER):
            self.held[size[0] + register * LANES] = b.const(self.behind, self.some)
        return size[0]

    def folded(
        self, op: BinaryOp, size: Value, first: int, of: Callable[[Value], Value]
    ) -> Value:
        """Return what ``op`` makes of numbers ``of`` all samples."""
        parts = [b.const(first, self.some)] * TOGETHER
        with b.loop(0, size, TOGETHER * LANES, carry=parts) as k:
            for i, part in enumerate(parts):
                parts[i] = b.binary(op, part, of(self.held[k + i * LANES, self.some]))
        a, *others = parts
        for other in others:
            a = b.binary(op, a, other)
        for n in (LANES >> k for k in range(1, LANES.bit_length())):
            halves = (b.shuffle(a, a, range(k, k + n)) for k in (0, n))
            a = b.binary(op, *halves)
        return b.extract(a, 0).to(I64)

    def counted(self, size: Value, limit: Value) -> Value:
        """Return how many samples lie up to a place."""
        last = b.splat((limit + self.least).to(self.element), LANES)
        ones = b.const(1, self.some)
        return self.folded("add", size, 0, lambda x: b.select(x <= last, ones, 0))

    def before(self, size: Value, limit: Value) -> Value:
        """Return the last sample before a place, or the least of all targets."""
        least = self.least
        end = b.splat((limit + least).to(self.element), LANES)
        last = self.folded("max", size, least, lambda x: b.select(x < end, x, least))
        return last - least

    def find(self, size: Value, rank: Value) -> tuple[Value, Value, Value]:
        """Return the place of a rank, and how many lie before it and up to it."""
        state = [self.none, self.n_places - 1, self.none, size]
        with b.repeat(lambda: state[0] < state[1], state):
            first, last, under, upto = state
            place = (first + last) >> 1
            count = self.counted(size, place)
            beyond = count > rank
            state[0] = b.select(beyond, first, place + 1)
            state[1] = b.select(beyond, place, last)
            state[2] = b.select(beyond, under, count)
            state[3] = b.select(beyond, count, upto)
        return state[0], state[2], state[3]

    @contextmanager
    def each_quantile(self, size: Value, to: Value) -> Iterator[tuple[Value, Value]]:
        with b.when(size > 0), b.loop(self.n_quantiles) as k:
            yield self.quantiles[k], to + k

    def compute(self, row: Value, output: Value, to: Value, base: Value) -> None:
        size = self.hold(row, output)
        with self.each_quantile(size, to) as (q, at):
            index = q * (size - 1).to(F64)
            index = index if self.single else index + 1.0 - 1.0
            rank = index.to(I64).min(size - 1)
            high, under, _ = self.find(size, (rank + 1).min(size - 1))
            low = b.select(under <= rank, high, self.before(size, high))
            way, below = index - rank.to(F64), (rank + 1).to(F64)
            self.give(at, base, low, high, way, below)


class _Counts(_SampleRanks):
    """Finds the samples around a share of their number."""

    def compute(self, row: Value, output: Value, to: Value, base: Value) -> None:
        size = self.hold(row, output)
        total = (size - 1).to(F64)
        with self.each_quantile(size, to) as (q, at):
            # the least target of all is below, even if it is no sample of the row
            rank = (q * total + 1.0).to(I64).max(self.counted(size, self.none))
            high, under, upto = self.find(size, rank.min(size - 1))
            facts = q, total, under.to(F64), (upto - under).to(F64)
            low = self.before(size, high)
            self.give_share(at, base, low, high, rank >= size, *facts)


class _Mean(_Samples):
    """Adds weights of samples to their places; the mean of their values."""

    def allocate(self) -> None:
        self.n_words = (self.n_places >> 6) + 1
        self.weights = b.alloc("weights", F64 if self.by_leaf else I32, self.n_places)
        self.words = b.alloc("words", I64, self.n_words)
        for buffer, n in ((self.weights, self.n_places), (self.words, self.n_words)):
            with b.loop(n) as k:
                buffer[k] = 0

    def weigh(self, row: Value, output: Value) -> Value:
        """Add the weight of each sample to its place; return how many there are."""
        weights, words, size = self.weights, self.words, [self.none]
        with self.lists(row, output, size) as (begin, end):
            size[0] = size[0] + (end - begin)
        with self.lists(row, output, []) as (begin, end):
            weight = b.const(1, weights.element)
            if self.by_leaf:
                weight = self.one / (end - begin).to(F64) * size[0].to(F64)
                weight = weight / self.n_trees.to(F64)
            with b.loop(begin, end) as k:
                at = self.place_at(k)
                weights[at] = weights[at] + weight
                words[at >> 6] = words[at >> 6] | (b.const(1) << (at & 63))
        return size[0]

    @contextmanager
    def in_order(self, carry: list[Value]) -> Iterator[tuple[Value, Value]]:
        """Open a loop over a row's places; yield each and its weight, taken off."""
        with b.loop(self.n_words, carry=carry) as k:
            state = [self.words[k], *carry]
            self.words[k] = self.none
            with b.repeat(lambda: state[0].ne(0), state):
                bits, *carry[:] = state
                place = k * 64 + b.count_zeros(bits)
                weight = self.weights[place].to(F64)
                self.weights[place] = 0
                yield place, weight
                state[:] = bits & (bits - 1), *carry
            carry[:] = state[1:]

    def compute(self, row: Value, output: Value, to: Value, base: Value) -> None:
        values = self.values
        with b.when(self.weigh(row, output) > 0):
            sums = [self.zero, self.zero]
            with self.in_order(sums) as (place, weight):
                sums[:] = sums[0] + weight, sums[1] + values[base + place] * weight
            self.out[to] = sums[1] / sums[0]


class _Shares(_Mean):
    """Finds the samples around a share of their weight."""

    def allocate(self) -> None:
        super().allocate()
        self.found = b.alloc("found", I64, self.n_places + 1)
        names = "own", "sums"
        self.own, self.sums = (b.alloc(name, F64, self.n_places + 1) for name in names)

    def compute(self, row: Value, output: Value, to: Value, base: Value) -> None:
        words, found, own, sums = self.words, self.found, self.own, self.sums
        with b.when(self.weigh(row, output) > 0):
            words[self.none] = words[self.none] | 1  # see _Counts
            listed = [self.none, self.zero]
            with self.in_order(listed) as (place, weight):
                number, whole = listed[0], listed[1] + weight
                found[number], own[number], sums[number] = place, weight, whole
                listed[:] = number + 1, whole
            n_found, whole = listed
            total, last = whole + 1.0 - 2.0, n_found - 1
            with b.loop(self.n_quantiles) as k:
                q, state = self.quantiles[k], [b.const(1)]
                p = q * total + 1.0

                def behind() -> Value:
                    return (state[0] < n_found) & (sums[state[0].min(last)] <= p)

                with b.repeat(behind, state):
                    state[0] = state[0] + 1
                at = state[0].min(last)
                under = (at - 1).max(self.none)
                facts = state[0] >= n_found, q, total, sums[under], own[at]
                self.give_share(to + k, base, found[under], found[at], *facts)


class _Average(_Samples):
    """Adds up the values of samples leaf by leaf."""

    def compute(self, row: Value, output: Value, to: Value, base: Value) -> None:
        total = [self.none, self.zero]
        with self.lists(row, output, total) as (begin, end):
            part = [total[1]]
            with b.loop(begin, end, carry=part) as k:
                part[0] = part[0] + self.values[base + self.place_at(k)]
            total[:] = total[0] + (end - begin), part[0]
        self.out[to] = total[1] / total[0].to(F64)


_STATISTICS: dict[SampleStatistic, type[_Samples]] = {
    **{
        "singles": _SampleRanks,
        "ranks": _SampleRanks,
        "counts": _Counts,
        "weights": _Shares,
    },
    **{"mean": _Mean, "weighted_mean": _Mean, "average": _Average},
}
