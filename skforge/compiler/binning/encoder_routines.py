"""The code that makes statistics of hashes; see ``forest/encoder_tables.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import F32, I32, I64, U8, Buffer, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.target import Target
from skforge.forest import categories
from skforge.forest.encoder_tables import (
    ARRAYS,
    KINDS,
    REGISTERS,
    SIZES,
)

#: Rows of a block, and those of a vector.
BLOCK, LANES = 64, 16
#: Fewer rows are encoded one by one.
FEW = 4
#: What parts of combinations are.
KINDS_OF_PARTS = range(categories.EQUAL + 1)


def encoder(target: Target) -> lir.Function:
    n, out = Value("n", I64), Buffer("out", F32)
    sizes = {name: Value(name, I64) for name in SIZES}
    arrays = {k: Buffer(k, scalar_of(np.dtype(kind))) for k, kind in ARRAYS.items()}
    with Builder() as b, b.parallel((n + (BLOCK - 1)) // BLOCK) as block:
        first = block * BLOCK
        count = (n - first).min(BLOCK)
        written = BlockEncoder(sizes, arrays, out, target)

        def rows() -> None:
            with b.loop(first, first + count) as r:
                written.row(r)

        def together() -> None:
            written.block(first, count)
            written.write(first, count)

        b.if_(count < FEW, rows, together)
    params: tuple[Value | Buffer, ...] = (n, out, *sizes.values(), *arrays.values())
    return lir.Function("skf_encode", params, b.finish())


class BlockEncoder:
    """Makes the statistics of a block of rows, in ``bytes``, and writes them to rows.

    A *value* is what parts of combinations read: a hash, its rank, or a flag. A block
    has a line of each column, then of each value, and of each statistic, as bytes.
    """

    def __init__(
        self,
        sizes: dict[str, Value],
        arrays: dict[str, Buffer],
        out: Buffer,
        target: Target,
    ) -> None:
        self.sizes, self.a, self.out = sizes, arrays, out
        self.permutes = target.permuted_bytes >= BLOCK
        self.bits = b.view("bits", I32, b.address(out))
        self.lines = b.alloc("lines", I32, sizes["n_columns"] * BLOCK)
        self.values = b.alloc("values", I32, sizes["n_values"] * BLOCK)
        self.strange = b.local("strange", I32)
        self.short = b.alloc("short", U8, sizes["n_values"] * BLOCK)
        self.bytes = b.alloc("bytes", U8, sizes["n_statistics"] * BLOCK)

    def block(self, first: Value, count: Value) -> None:
        """Make the statistics of up to ``BLOCK`` rows, a line of bytes for each."""
        sizes = self.sizes
        end = (count + (LANES - 1)) & -LANES
        row = first * sizes["width"]
        with b.loop(sizes["n_columns"]) as j:
            with b.loop(count) as r:
                self.lines[j * BLOCK + r] = self.bits[row + r * sizes["width"] + j]
            with b.loop(count, end) as r:
                self.lines[j * BLOCK + r] = 0
        self.strange[0] = 0
        with b.loop(sizes["n_ranked"]) as v, b.loop(end) as r:
            bits = self.lines[self.a["value_column"][v].to(I64) * BLOCK + r]
            self._write_rank(v, bits, v * BLOCK + r)
        for kind in KINDS_OF_PARTS:
            first_value, last = (self.a["value_first"][k] for k in (kind, kind + 1))
            with b.loop(first_value, last) as v:
                self._write_values(kind, v, end)
        for which, (n_categories, n_flags, registers) in enumerate(KINDS):
            with self._tables(which, which + 1, n_categories) as c:
                if registers and self.permutes:
                    self._permuted(c, n_categories, n_flags, registers)
                else:
                    with b.loop(0, end, LANES) as r:
                        self._dense(c, n_categories + n_flags, r, LANES)
        hashed = self._first_hashed()
        with b.loop(hashed, sizes["n_hashed"]) as c, b.loop(0, end, LANES // 2) as r:
            self._hashed(c, r, LANES // 2)

    def write(self, first: Value, count: Value) -> None:
        sizes = self.sizes
        end = (count + (LANES - 1)) & -LANES
        target = first * sizes["width"] + sizes["n_columns"]
        whole = sizes["n_statistics"] & -LANES
        with b.loop(0, whole, LANES) as s, b.loop(0, end, LANES) as r:
            self._square(s, r, count, target + r * sizes["width"] + s)
        with b.loop(count) as r, b.loop(whole, sizes["n_statistics"]) as s:
            index = target + r * sizes["width"] + s
            self.out[index] = self.bytes[s * BLOCK + r].to(F32)

    def _square(self, s: Value, r: Value, count: Value, target: Value) -> None:
        lines = [self.bytes[(s + i) * BLOCK + r, Vec(U8, LANES)] for i in range(LANES)]
        half = LANES // 2
        low = [i // 2 + LANES * (i % 2) for i in range(LANES)]
        high = [half + i for i in low]
        for _ in range(LANES.bit_length() - 1):  # each round interleaves halves
            pairs = zip(lines[:half], lines[half:], strict=True)
            lines = [b.shuffle(x, y, way) for x, y in pairs for way in (low, high)]
        for i, line in enumerate(lines):
            with b.when(r + i < count):
                self.out[target + self.sizes["width"] * i] = line.to(F32)

    def row(self, r: Value) -> None:
        a, sizes, lanes = self.a, self.sizes, Vec(I32, LANES)
        row = r * sizes["width"]
        self.strange[0] = 0
        with b.loop(sizes["n_ranked"]) as v:
            self._write_rank(v, self.bits[row + a["value_column"][v].to(I64)], v)
        # behind the last value is room for a vector
        with b.loop(sizes["n_ranked"], sizes["n_values"], LANES) as v:
            kind, number = (a[f"value_{k}"][v, lanes] for k in ("kind", "number"))
            column = a["value_column"][v, lanes].to(I64) + row
            bits = b.load(self.bits, column, I32)
            self.values[v] = self._value(kind, number, bits)
        for first in range(0, len(KINDS), len(REGISTERS)):
            n_categories, n_flags, _ = KINDS[first]
            with self._tables(first, first + len(REGISTERS), n_categories) as c:
                self._dense(c, n_categories + n_flags, b.const(0), 0)
        hashed = self._first_hashed()
        with b.loop(hashed, sizes["n_hashed"]) as c:
            self._hashed(c, b.const(0), 0)
        target, count = row + sizes["n_columns"], sizes["n_statistics"]
        whole = count & -LANES
        with b.loop(0, whole, LANES) as s:
            self.out[target + s] = self.bytes[s, Vec(U8, LANES)].to(F32)
        with b.loop(whole, count) as s:
            self.out[target + s] = self.bytes[s].to(F32)

    # ------------------------------------------------------------ values

    def _write_values(self, kind: int, v: Value, end: Value) -> None:
        number = b.splat(self.a["value_number"][v], LANES)
        column = self.a["value_column"][v].to(I64) * BLOCK
        with b.loop(0, end, LANES) as r:
            bits = self.lines[column + r, Vec(I32, LANES)]
            if kind == categories.HASH:
                self.values[v * BLOCK + r] = bits
            else:
                is_set = self._is_set(kind, bits, number)
                for line, one in ((self.values, I32), (self.short, U8)):
                    flag = b.select(is_set, b.const(1, Vec(one, LANES)), 0)
                    line[v * BLOCK + r] = flag

    @staticmethod
    def _is_set(kind: int, bits: Value, number: Value) -> Value:
        if kind == categories.EQUAL:
            return bits.eq(number)
        x, border = b.bitcast(bits, F32), b.bitcast(number, F32)
        return x > border if kind == categories.ABOVE else ~(x <= border)

    def _value(self, kind: Value, number: Value, bits: Value) -> Value:
        *others, is_set = (self._is_set(k, bits, number) for k in KINDS_OF_PARTS[1:])
        for k, other in enumerate(others, categories.ABOVE):
            is_set = b.select(kind.eq(k), other, is_set)
        flag = b.select(is_set, b.const(1, bits.type), 0)
        return b.select(kind.eq(categories.HASH), bits, flag)

    def _write_rank(self, v: Value, bits: Value, index: Value) -> None:
        rank = self._rank(v, bits)
        self.values[index] = rank
        self.short[index] = rank.to(U8)
        with b.when(rank.eq(0)):
            strange = self._rank(v + self.sizes["n_ranked"], bits)
            self.strange[0] = self.strange[0] | strange

    @contextmanager
    def _tables(self, kind: int, end: int, n_categories: int) -> Iterator[Value]:
        """Open a loop over tables of some kinds; of pairs if no hash is strange."""
        first, last = (self.a["dense_kind"][i] for i in (kind, end))
        plain = self.strange[0].eq(0)
        if n_categories > 1:
            last = b.select(plain, last, first)
        with b.loop(first, last) as c:
            yield c

    def _first_hashed(self) -> Value:
        return b.select(self.strange[0].eq(0), self.sizes["n_both"], 0)

    def _rank(self, value: Value, bits: Value) -> Value:
        a = self.a
        shift = a["slot_shift"][value]
        high = ((bits * a["slot_factor"][value]) >> shift) & ((2 << (31 - shift)) - 1)
        first = a["slot_start"][value]
        state = [first + high.to(I64)]

        def goes_on() -> Value:
            other = a["slot_hash"][state[0]].ne(bits)
            return other & a["slot_rank"][state[0]].ne(0)

        with b.repeat(goes_on, state):
            state[0] = state[0] + 1
        return a["slot_rank"][state[0]]

    # ------------------------------------------------------------ statistics

    # Rows of a vector have lines of a block; one row (0 lanes) has a place in each.

    def _dense(self, c: Value, n_parts: int, r: Value, lanes: int) -> None:
        a = self.a
        kind = Vec(I32, lanes) if lanes else I32
        first_part, entry = a["dense_part"][c], b.const(0, kind)
        for p in (first_part + k for k in range(n_parts)):
            value = a["dense_value"][p].to(I64)
            part = self.values[self._index_of(value, r, lanes), kind]
            entry = entry + part * a["dense_factor"][p]
        first, end = a["dense_statistic"][c], a["dense_end"][c]
        with b.loop(first, end) as s:
            first_byte = a["dense_byte"][c] + (s - first) * a["dense_size"][c]
            word = b.load(b.view("table", U8, a["table"], first_byte), entry, I32)
            self.bytes[self._index_of(s, r, lanes)] = (word & 0xFF).to(U8)

    def _permuted(
        self, c: Value, n_categories: int, n_flags: int, registers: int
    ) -> None:
        a, vec = self.a, Vec(U8, BLOCK)
        part, first = a["dense_part"][c], a["dense_statistic"][c]
        numbers = [a["dense_value"][part + k] for k in range(n_categories + n_flags)]
        rank, *flags = (self.short[n.to(I64) * BLOCK, vec] for n in numbers)
        if n_categories > 1:
            rank = rank + flags.pop(0) * a["dense_factor"][part + 1].to(U8)
        n_ranks = a["dense_size"][c] >> n_flags
        with b.loop(first, a["dense_end"][c]) as s:
            table = a["dense_byte"][c] + (s - first) * a["dense_size"][c]

            def looked_up(number: int, table: Value = table) -> Value:
                start = table + n_ranks * number
                parts = [a["table"][start + BLOCK * k, vec] for k in range(registers)]
                return b.permute(parts, rank)

            values = [looked_up(number) for number in range(1 << n_flags)]
            for flag in flags:  # the first one is the lowest bit
                pairs = zip(values[1::2], values[::2], strict=True)
                values = [b.select(flag.ne(0), yes, no) for yes, no in pairs]
            self.bytes[s * BLOCK] = values[0]

    @staticmethod
    def _index_of(value: Value, r: Value, lanes: int) -> Value:
        return value * BLOCK + r if lanes else value

    def _take(
        self, table: Buffer, start: Value, first: Value, end: Value, r: Value
    ) -> None:
        with b.loop(first, end, 4) as s:
            index = start + (s - first).to(I32)
            word = [b.load(table, index, I32)]
            with b.loop(s, (s + 4).min(end), carry=word) as k:
                cell = self._index_of(k, r, start.type.lanes)
                self.bytes[cell] = (word[0] & 0xFF).to(U8)
                word[0] = word[0] >> 8

    def _hashed(self, c: Value, r: Value, lanes: int) -> None:
        a = self.a
        kind, half = (Vec(I64, lanes), Vec(I32, lanes)) if lanes else (I64, I32)
        total = [b.const(0, kind)]
        with b.loop(a["part"][c], a["part"][c + 1], carry=total) as p:
            value = a["part_value"][p].to(I64)
            part = self.values[self._index_of(value, r, lanes), half].to(I64)
            total[0] = (total[0] + part * categories.MULTIPLIER) * categories.MULTIPLIER
        key, shift = total[0], a["shift"][c]
        mask = (2 << (63 - shift)) - 1
        slot = ((key >> shift) & mask) + a["start_place"][c]
        first, keys = b.load(a["start"], slot, I32).to(I64), a["key_place"][c]
        state = [b.const(-1, kind)]  # of all other hashes
        with b.loop(a["probes"][c], carry=state) as k:
            probe = first + k
            same = b.load(a["key"], probe + keys, I64).eq(key)
            state[0] = b.select(same, probe, state[0])
        begin, end = a["statistic"][c], a["statistic_end"][c]
        table = b.view("table", U8, a["table"], a["byte"][c])
        start = ((state[0] + 1) * (end - begin)).to(I32)
        self._take(table, start, begin, end, r)
