"""Constants and alignments that an emitter knows while it writes."""

from __future__ import annotations

from math import gcd
from typing import TypeAlias

from skforge.compiler.ir.lir import nodes as lir

Number: TypeAlias = int | float | bool

_MOST = 1 << 30


class IntegerFacts:
    """Constants, sums with one, and powers of two that integers are multiples of."""

    def __init__(self, parent: IntegerFacts | None = None) -> None:
        self.constants: dict[str, Number] = {}
        self._multiples: dict[str, int] = {}
        self._sums: dict[str, tuple[lir.Value, int]] = {}
        self._extended: set[str] = set()
        self._pairs: dict[str, tuple[lir.Value, lir.Value]] = {}
        if parent is not None:
            self.constants |= parent.constants
            self._multiples |= parent._multiples
            self._sums |= parent._sums

    def constant_of(self, value: lir.Value) -> Number | None:
        return self.constants.get(value.name)

    def sum_of(self, value: lir.Value) -> tuple[lir.Value, int] | None:
        """Return a value and a constant whose 64-bit sum this value is, or None."""
        return self._sums.get(value.name)

    def pair_of(self, value: lir.Value) -> tuple[lir.Value, lir.Value] | None:
        """Return the number and the shorter, extended one whose sum it is, or None."""
        return self._pairs.get(value.name)

    def note_extended(self, value: lir.Value) -> None:
        self._extended.add(value.name)

    def multiple_of(self, value: lir.Value) -> int:
        number = self.constants.get(value.name)
        if number is not None:
            return gcd(number, _MOST) if isinstance(number, int) else 1
        return self._multiples.get(value.name, 1)

    def note_multiple(self, value: lir.Value, factor: int) -> None:
        self._multiples[value.name] = gcd(factor, _MOST)

    def note_binary(self, value: lir.Value, op: lir.Binary) -> None:
        if not isinstance(value.type, lir.Scalar) or value.type.is_float:
            return
        a, b = self.multiple_of(op.a), self.multiple_of(op.b)
        match op.op:
            case "mul":
                self.note_multiple(value, a * b)
            case "add" | "sub" | "or":
                self.note_multiple(value, min(a, b))
                if op.op == "add" and op.b.name in self._extended:
                    self._pairs[value.name] = op.a, op.b
                term = self.constant_of(op.b)
                if op.op == "add" and value.type == lir.I64 and term is not None:
                    start, known = self.sum_of(op.a) or (op.a, 0)
                    self._sums[value.name] = start, known + int(term)
            case "and":
                self.note_multiple(value, max(a, b))
            case "shl":
                shift = self.constant_of(op.b)
                if shift is not None and 0 <= shift < 30:
                    self.note_multiple(value, a << int(shift))
            case _:
                pass

    def note_loop(self, loop: lir.For) -> None:
        least = min(self.multiple_of(loop.lo), self.multiple_of(loop.step))
        self.note_multiple(loop.var, least)

    # ------------------------------------------------------------ memory

    def base_alignment(self, buffer: lir.Buffer) -> int:
        return buffer.alignment or buffer.element.bytes

    def element_alignment(self, buffer: lir.Buffer) -> int:
        return gcd(self.base_alignment(buffer), buffer.element.bytes)

    def alignment(self, buffer: lir.Buffer, index: lir.Value) -> int:
        size = buffer.element.bytes
        return gcd(self.base_alignment(buffer), size * self.multiple_of(index))
