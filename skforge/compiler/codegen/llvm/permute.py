"""Look-ups in vector registers: one or two permutes, blends above, else loads.

LLVM recognises one-register permutes but not two-register ones, and turns a generic
permute into a store and one load per lane; hence the intrinsics.
"""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.codegen.llvm.bytes import permute_bytes, shuffles_bytes
from skforge.compiler.codegen.llvm.types import (
    splat_constant,
    type_text,
)
from skforge.compiler.codegen.llvm.writer import Writer
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target

#: Intrinsics for 512-bit permutes of one and of two registers, by element.
_AVX512 = {
    "f32": ("permvar.sf.512", "vpermi2var.ps.512"),
    "f64": ("permvar.df.512", "vpermi2var.pd.512"),
    "i32": ("permvar.si.512", "vpermi2var.d.512"),
    "u32": ("permvar.si.512", "vpermi2var.d.512"),
    "i64": ("permvar.di.512", "vpermi2var.q.512"),
    "u16": ("permvar.hi.512", "vpermi2var.hi.512"),
    "u8": ("permvar.qi.512", "vpermi2var.qi.512"),
}
_AVX2 = {"f32": "permps", "i32": "permd", "u32": "permd"}


def _one_register(target: Target, element: str, bits: int) -> str | None:
    """Return the intrinsic that permutes one register, if there is one."""
    if bits == 512 and target.has_mask_registers:
        needs = {"u8": "avx512vbmi", "u16": "avx512bw"}.get(element, "avx512f")
        if target.has(needs):
            return f"llvm.x86.avx512.{_AVX512[element][0]}"
    if bits == 256 and element in _AVX2 and target.has("avx2"):
        return f"llvm.x86.avx2.{_AVX2[element]}"
    return None


def permute(
    w: Writer, value: lir.Value, tables: Sequence[lir.Value], index: lir.Value
) -> str:
    """Return the operand with the looked-up lanes."""
    element, lanes = value.type.element, value.type.lanes
    if lanes > tables[0].type.lanes:
        tables = [_repeated(w, tables[0], element, lanes)]
    wide = tables[0].type.lanes
    bits = 8 * element.bytes * wide
    one = _one_register(w.module.target, element.name, bits)
    if one is None:
        if shuffles_bytes(w.module.target, element, len(tables) * wide, lanes):
            return permute_bytes(w, value, tables, index)
        return _through_memory(w, value, tables, index)
    text = type_text(tables[0].type)
    int_text = f"<{wide} x i{8 * element.bytes}>"
    where = w.use(index)
    if lanes < wide:  # the upper lanes look up anything
        upper = ["poison"] * (wide - lanes)
        where = w.pick(f"{type_text(index.type)} {where}", [*range(lanes), *upper])

    def look_up(part: Sequence[lir.Value]) -> str:
        if len(part) == 1:
            return w.let(
                f"call {text} @{one}({text} {w.use(part[0])}, {int_text} {where})"
            )
        if len(part) == 2 and bits == 512:
            two = f"llvm.x86.avx512.{_AVX512[element.name][1]}"
            low, high = w.use(part[0]), w.use(part[1])
            return w.let(
                f"call {text} @{two}({text} {low}, {int_text} {where}, {text} {high})"
            )
        half = len(part) // 2
        lower, upper = look_up(part[:half]), look_up(part[half:])
        chosen = _bit_set(w, int_text, where, half * wide, element)
        mask = f"<{wide} x i1>"
        return w.let(f"select {mask} {chosen}, {text} {upper}, {text} {lower}")

    found = look_up(list(tables))
    return w.pick(f"{text} {found}", range(lanes)) if lanes < wide else found


def _repeated(
    w: Writer, table: lir.Value, element: lir.Scalar, lanes: int
) -> lir.Value:
    """Repeat a table to fill a register: indices are modulo its length.

    Byte shuffles work on 16 bytes, so the table then fills no more than those.
    """
    size = table.type.lanes
    if _one_register(w.module.target, element.name, 8 * element.bytes * lanes) is None:
        lanes = min(lanes, max(size, 16 // element.bytes))
    if lanes == size:
        return table
    made = lir.Value(w.temp(), lir.Vec(element, lanes))
    w.bind(made.name, w.pick(w.typed(table), [k % size for k in range(lanes)]))
    return made


def _bit_set(
    w: Writer, int_text: str, index: str, bit: int, element: lir.Scalar
) -> str:
    """Return a mask of the lanes whose index has a bit; the top bit is the sign."""
    width = 8 * element.bytes
    if bit == 1 << (width - 1):
        return w.let(f"icmp slt {int_text} {index}, zeroinitializer")
    picked = w.let(f"and {int_text} {index}, {splat_constant(str(bit), f'i{width}')}")
    return w.let(f"icmp ne {int_text} {picked}, zeroinitializer")


def _through_memory(
    w: Writer, value: lir.Value, tables: Sequence[lir.Value], index: lir.Value
) -> str:
    """Store the tables and load lane by lane."""
    element, lanes = value.type.element, value.type.lanes
    text, scalar = type_text(value.type), type_text(element)
    wide = tables[0].type.lanes
    size = len(tables) * wide
    place = w.temp()
    w.allocas.append(f"  {place} = alloca [{size} x {scalar}], align 64")
    for n, table in enumerate(tables):
        at = w.let(f"getelementptr inbounds {scalar}, ptr {place}, i64 {n * wide}")
        align = min(64, element.bytes * wide)
        w.line(f"store {w.typed(table)}, ptr {at}, align {align}")
    result = "poison"
    int_scalar = f"i{8 * element.bytes}"
    for lane in range(lanes):
        number = w.let(f"extractelement {w.typed(index)}, i64 {lane}")
        number = w.let(f"and {int_scalar} {number}, {size - 1}")
        if int_scalar != "i64":
            number = w.let(f"zext {int_scalar} {number} to i64")
        at = w.let(f"getelementptr inbounds {scalar}, ptr {place}, i64 {number}")
        loaded = w.let(f"load {scalar}, ptr {at}")
        result = w.let(f"insertelement {text} {result}, {scalar} {loaded}, i64 {lane}")
    return result
