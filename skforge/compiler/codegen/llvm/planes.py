"""Emit plane operations: bit i of a plane is row i."""

from __future__ import annotations

from math import gcd

from skforge.compiler.codegen.llvm.types import splat_constant, type_text
from skforge.compiler.codegen.llvm.writer import Writer
from skforge.compiler.ir.lir import nodes as lir


def _rows(w: Writer, type_: lir.Type, name: str) -> int:
    if not isinstance(type_, lir.Plane):
        raise w.module.fail(f"{name!r} is not a plane.")
    return type_.rows


def mux(w: Writer, type_: lir.Type, select: str, a: str, b: str) -> str:
    """Return ``a`` where ``select`` is set, else ``b``.

    AVX-512 has one instruction for it, named explicitly here, because LLVM's pattern
    matching would take as long as the rest of a fold.
    """
    text = type_text(type_)
    bits = type_.rows if isinstance(type_, lir.Plane) else 0
    if w.module.target.has_mask_registers and bits in (128, 256, 512):
        ternary = f"@llvm.x86.avx512.pternlog.q.{bits}"
        return w.let(
            f"call {text} {ternary}({text} {select}, {text} {a}, {text} {b}, i32 202)"
        )
    taken = w.let(f"and {text} {select}, {a}")
    vector = isinstance(type_, lir.Plane) and type_.rows >= 64
    ones = splat_constant("-1", "i64") if vector else "-1"
    inverse = w.let(f"xor {text} {select}, {ones}")
    other = w.let(f"and {text} {inverse}, {b}")
    return w.let(f"or {text} {taken}, {other}")


def _plane_address(
    w: Writer, table: lir.Buffer, index: str, rows: int, first: int
) -> tuple[str, int]:
    """Return a plane's address and alignment; ``first`` divides the plane number."""
    offset = index
    if index.startswith("%"):
        offset = w.let(f"mul i64 {index}, {rows // 8}")
    else:
        offset = str(int(index) * (rows // 8))
    at = w.let(f"getelementptr inbounds i8, ptr {w.pointer(table)}, i64 {offset}")
    return at, gcd(table.alignment or table.element.bytes, first * (rows // 8))


def load_plane(
    w: Writer, value: lir.Value, table: lir.Buffer, index: lir.Value
) -> None:
    """Load a plane by its number."""
    rows = _rows(w, value.type, value.name)
    at, align = _plane_address(w, table, w.index(index), rows, w.multiple_of(index))
    w.bind_value(value, f"load {type_text(value.type)}, ptr {at}, align {align}")


def store_plane(w: Writer, stmt: lir.StorePlane) -> None:
    """Store a plane by its number."""
    rows = _rows(w, stmt.value.type, stmt.value.name)
    number = w.index(stmt.index)
    at, align = _plane_address(w, stmt.table, number, rows, w.multiple_of(stmt.index))
    w.line(f"store {w.typed(stmt.value)}, ptr {at}, align {align}")


def planes_to_index(w: Writer, value: lir.Value, planes: tuple[lir.Value, ...]) -> None:
    """Combine the planes' bits into numbers, the first plane as the highest bit.

    They are joined as a tree, because in a chain each masked move waits for the one
    before.
    """
    lanes, text = value.type.lanes, type_text(value.type)
    element = type_text(value.type.element)
    parts = []
    for place, plane in enumerate(reversed(planes)):
        bits = w.let(f"bitcast {w.typed(plane)} to <{lanes} x i1>")
        part = w.let(
            f"select <{lanes} x i1> {bits}, {text} "
            f"{splat_constant(str(1 << place), element)}, {text} zeroinitializer"
        )
        parts.append(part)
    while len(parts) > 1:
        pairs = zip(parts[0::2], parts[1::2], strict=False)
        joined = [w.let(f"or {text} {a}, {b}") for a, b in pairs]
        parts = joined + parts[len(parts) & ~1 :]
    total = parts[0] if parts else "zeroinitializer"
    w.bind(value.name, total)
