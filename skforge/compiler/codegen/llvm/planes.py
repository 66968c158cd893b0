"""Emit plane and block operations in natural row order, for any target."""

from __future__ import annotations

from math import gcd

from skforge.compiler.codegen.llvm.types import (
    compare_code,
    mangled,
    splat_constant,
    type_text,
)
from skforge.compiler.codegen.llvm.writer import Writer, memory_element
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder


def all_ones(type_: lir.Type) -> str:
    """Return the constant plane with every bit set."""
    vector = isinstance(type_, lir.Plane) and type_.rows >= 64
    return splat_constant("-1", "i64") if vector else "-1"


def _rows(w: Writer, type_: lir.Type, name: str) -> int:
    if not isinstance(type_, lir.Plane):
        raise w.module.fail(f"{name!r} is not a plane.")
    return type_.rows


def compare_to_plane(w: Writer, value: lir.Value, op: lir.CompareToPlane) -> None:
    """Compare a vector of all the plane's rows with a number."""
    rows, lanes = _rows(w, value.type, value.name), op.column.type.lanes
    if lanes != rows:
        raise w.module.fail(f"{op.column.name!r} has {lanes} lanes for {rows} rows.")
    element = op.column.type.element
    text, scalar = type_text(op.column.type), type_text(element)
    number = w.splat(w.use(op.scalar), scalar, lanes)
    code = compare_code(op.op, element, op.unordered)
    bits = w.let(f"{code} {text} {w.use(op.column)}, {number}")
    w.bind_value(value, f"bitcast <{rows} x i1> {bits} to {type_text(value.type)}")


def plane_binary(
    w: Writer, value: lir.Value, op: str, a: lir.Value, b: lir.Value
) -> None:
    """Write and, or, xor or and-not."""
    text, right = type_text(value.type), w.use(b)
    if op == "andn":
        right = w.let(f"xor {text} {right}, {all_ones(value.type)}")
        op = "and"
    w.bind_value(value, f"{op} {text} {w.use(a)}, {right}")


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
    inverse = w.let(f"xor {text} {select}, {all_ones(type_)}")
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


def fold_tree(w: Writer, value: lir.Value, op: lir.FoldTree) -> None:
    """Select, level by level, the plane of the node that each row reaches."""
    rows = _rows(w, value.type, value.name)
    if not 0 <= op.level < op.depth:
        raise w.module.fail(f"FoldTree asks for level {op.level} of {op.depth}.")
    element, text = memory_element(op.indices.element), type_text(value.type)
    align = w.element_alignment(op.indices)
    first = w.index(op.offset)

    def plane(node: int) -> str:
        at = w.let(f"add i64 {first}, {node}")
        address = w.let(
            f"getelementptr inbounds {element}, ptr {w.pointer(op.indices)}, i64 {at}"
        )
        number = w.let(f"load {element}, ptr {address}, align {align}")
        if element != "i64":
            extend = "sext" if op.indices.element.is_signed else "zext"
            number = w.let(f"{extend} {element} {number} to i64")
        where, plane_align = _plane_address(w, op.table, number, rows, 1)
        return w.let(f"load {text}, ptr {where}, align {plane_align}")

    def fold(node: int, levels: int) -> str:
        """Return the plane reached ``levels`` below a node, depth first."""
        if levels == 0:
            return plane(node)
        left = fold(2 * node + 1, levels - 1)
        right = fold(2 * node + 2, levels - 1)
        return mux(w, value.type, plane(node), right, left)

    w.bind(value.name, fold(0, op.level))


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


def lookup(w: Writer, value: lir.Value, op: lir.Lookup) -> None:
    """Gather the table's elements."""
    lanes, text = value.type.lanes, type_text(value.type)
    if value.type.element != op.table.element:
        raise w.module.fail(
            f"Lookup of {op.table.element.name} {op.table.name!r} as {text}."
        )
    element = memory_element(op.table.element)
    # The base is part of the scalar address, so that indices stay 32 bits wide.
    start = w.address(op.table, op.base)
    index, wide = w.use(op.index), f"<{lanes} x i32>"
    kind = op.index.type.element
    if kind == lir.U32:
        wide = f"<{lanes} x i64>"
    if kind in (lir.I32, lir.I64):
        wide = type_text(op.index.type)
    else:
        index = w.let(f"zext {w.typed(op.index)} to {wide}")
    addresses = w.let(f"getelementptr inbounds {element}, ptr {start}, {wide} {index}")
    w.bind_value(
        value,
        f"call {text} @llvm.masked.gather.{mangled(value.type)}.v{lanes}p0("
        f"<{lanes} x ptr> align {w.element_alignment(op.table)} {addresses}, "
        f"{w.all_lanes(lanes)}, {text} zeroinitializer)",
    )


# ------------------------------------------------------------ blocks, as plain LIR


class _Expansion(Builder):
    """A builder whose names cannot clash with the kernel's."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def name(self, hint: str) -> str:
        return f"{super().name(hint)}.{self._tag}"


def transpose_block(stmt: lir.TransposeBlock, tag: str) -> lir.Body:
    """Return the loops that implement a ``TransposeBlock``."""
    b = _Expansion(tag)
    zero, one, rows = b.const(0), b.const(1), b.const(stmt.rows)
    first, n_rows = b.convert(stmt.first, lir.I64), b.convert(stmt.n_rows, lir.I64)
    stride = b.convert(stmt.stride, lir.I64)
    last = b.sub(n_rows, one)

    def feature_loop(k: lir.Value, _: tuple[lir.Value, ...]) -> None:
        feature = b.convert(b.load(stmt.features, k), lir.I64)
        base = b.mul(feature, rows)

        def row_loop(r: lir.Value, _: tuple[lir.Value, ...]) -> None:
            row = b.binary("min", b.add(first, r), last)
            item = b.load(stmt.source, b.add(b.mul(row, stride), feature))
            b.store(stmt.target, b.add(base, r), item)

        b.for_(zero, rows, one, row_loop)

    b.for_(zero, b.convert(stmt.n_features, lir.I64), one, feature_loop)
    return b.finish()


def unpermute_store(stmt: lir.UnpermuteStore, tag: str) -> lir.Body:
    """Return the loop that implements an ``UnpermuteStore`` in natural order."""
    b = _Expansion(tag)
    start = b.convert(stmt.index, lir.I64)

    def row_loop(r: lir.Value, _: tuple[lir.Value, ...]) -> None:
        b.store(stmt.target, b.add(start, r), b.load(stmt.source, r))

    b.for_(b.const(0), b.convert(stmt.n_valid, lir.I64), b.const(1), row_loop)
    return b.finish()
