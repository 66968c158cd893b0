"""Emit plane operations: bit i of a plane is row i."""

from __future__ import annotations

from math import gcd

from skforge.compiler.codegen.llvm.types import splat_constant, type_text
from skforge.compiler.codegen.llvm.writer import Writer
from skforge.compiler.ir.lir import nodes as lir


def mux(w: Writer, value: lir.Value, op: lir.PlaneMux) -> str:
    """Return ``a`` where ``select`` is set, else ``b``.

    AVX-512 has one instruction for it, named explicitly here, because LLVM's pattern
    matching would take as long as the rest of a fold.
    """
    type_, text = value.type, type_text(value.type)
    select, a, b = w.use(op.select), w.use(op.a), w.use(op.b)
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
    w: Writer, access: lir.LoadPlane | lir.StorePlane, plane: lir.Value
) -> tuple[str, int]:
    """Return a plane's address and alignment."""
    if not isinstance(plane.type, lir.Plane):
        raise w.module.fail(f"{plane.name!r} is not a plane.")
    table, n_bytes = access.table, plane.type.rows // 8
    index = w.index(access.index)
    if index.startswith("%"):
        offset = w.let(f"mul i64 {index}, {n_bytes}")
    else:
        offset = str(int(index) * n_bytes)
    at = w.let(f"getelementptr inbounds i8, ptr {w.pointer(table)}, i64 {offset}")
    first = w.multiple_of(access.index)
    return at, gcd(table.alignment or table.element.bytes, first * n_bytes)


def load_plane(w: Writer, value: lir.Value, op: lir.LoadPlane) -> str:
    """Return the instruction that loads a plane by its number."""
    at, align = _plane_address(w, op, value)
    return f"load {type_text(value.type)}, ptr {at}, align {align}"


def store_plane(w: Writer, stmt: lir.StorePlane) -> None:
    """Store a plane by its number."""
    at, align = _plane_address(w, stmt, stmt.value)
    w.line(f"store {w.typed(stmt.value)}, ptr {at}, align {align}")


def planes_to_index(w: Writer, value: lir.Value, op: lir.PlanesToIndex) -> str:
    """Combine the planes' bits into numbers, the first plane as the highest bit.

    They are joined as a tree, because in a chain each masked move waits for the one
    before.
    """
    lanes, text = value.type.lanes, type_text(value.type)
    element = type_text(value.type.element)
    parts = []
    for place, plane in enumerate(reversed(op.planes)):
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
    return parts[0]
