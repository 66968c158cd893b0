"""Look-ups and compressions by byte shuffles, where no wider permute exists.

x86 shuffles 16 bytes among 16 (two such groups at once with AVX2); Arm looks bytes up
among 64. A longer table is looked up in parts: an index outside a part gives zero, and
the results are combined.
"""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.codegen.llvm.writer import (
    LlvmWriter,
    chosen,
    mangled,
    scalar_constant,
    splat_constant,
    type_text,
)
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target


def shuffles_bytes(target: Target, element: lir.Scalar, size: int, lanes: int) -> bool:
    return (
        size * element.bytes <= 256
        and lanes * element.bytes % 16 == 0
        and (target.has("ssse3") or target.has("neon"))
    )


def permute_bytes(
    w: LlvmWriter,
    value: lir.Value,
    tables: Sequence[lir.Value],
    index: lir.Value,
    within: bool,
) -> str:
    element, lanes = value.type.element, value.type.lanes
    wide = tables[0].type.lanes
    entries, text = len(tables) * wide, type_text(index.type)
    kind = type_text(index.type.element)
    where = w.use(index)
    if not within:
        last = splat_constant(str(entries - 1), kind)
        where = w.let(f"and {text} {where}, {last}")
    size = lanes * element.bytes
    if element.bytes == 8:  # NEON has no product of so many bits
        halves = w.let(f"bitcast {text} {where} to <{2 * lanes} x i32>")
        twice = [k - k % 2 for k in range(2 * lanes)]
        where = w.pick(f"<{2 * lanes} x i32> {halves}", twice)
        kind, text = "i32", f"<{2 * lanes} x i32>"
    bytes_ = f"<{size} x i8>"
    if element.bytes > 1:  # byte k of number i is at its size times i, plus k
        ones = int.from_bytes(b"\1" * min(4, element.bytes), "little")
        each = splat_constant(str(element.bytes * ones), kind)
        where = w.let(f"mul {text} {where}, {each}")
    control = w.let(f"bitcast {text} {where} to {bytes_}")
    if element.bytes > 1:
        places = ", ".join(f"i8 {k % element.bytes}" for k in range(size))
        control = w.let(f"add {bytes_} {control}, <{places}>")
    parts = _parts(w, tables, wide * element.bytes)
    step = _shuffled(w.module.target, size)
    pieces = []
    for at in range(0, size, step):
        own = control
        if step < size:
            own = w.pick(f"<{size} x i8> {control}", range(at, at + step))
        if w.module.target.has("neon"):
            pieces.append(_look_up_neon(w, parts, own))
        else:
            pieces.append(_look_up_x86(w, parts, own, step))
    joined = _joined(w, pieces, step)
    return w.let(f"bitcast <{size} x i8> {joined} to {type_text(value.type)}")


def _shuffled(target: Target, size: int) -> int:
    if target.has_mask_registers and target.has("avx512bw") and size % 64 == 0:
        return 64
    return 32 if target.has("avx2") and size % 32 == 0 else 16


def _parts(w: LlvmWriter, tables: Sequence[lir.Value], size: int) -> list[str]:
    parts = []
    for table in tables:
        whole = w.let(f"bitcast {w.typed(table)} to <{size} x i8>")
        for at in range(0, size, 16):
            parts.append(w.pick(f"<{size} x i8> {whole}", range(at, at + 16)))
    return parts


def _joined(w: LlvmWriter, pieces: list[str], size: int) -> str:
    while len(pieces) > 1:
        kind, lanes = f"<{size} x i8>", chosen(range(2 * size))
        pieces = [
            w.let(f"shufflevector {kind} {x}, {kind} {y}, {lanes}")
            for x, y in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        size *= 2
    return pieces[0]


def _look_up_x86(w: LlvmWriter, parts: list[str], control: str, size: int) -> str:
    """Look bytes up in parts of 16, and blend those by the higher bits of places.

    Two parts take four instructions, 16 take 35; looking up zeros outside of a part,
    and combining the answers, would take 5 and 63.
    """
    kind, name = f"<{size} x i8>", "llvm.x86.ssse3.pshuf.b.128"
    if size > 16:
        name = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}[size]
    low, found = control, []
    if len(parts) > 8:  # a place of 128 or more would give zero
        low = w.let(f"and {kind} {control}, {splat_constant('15', 'i8')}")
    for part in parts:
        if size > 16:
            part = w.pick(f"<16 x i8> {part}", [*range(16)] * (size // 16))
        found.append(w.let(f"call {kind} @{name}({kind} {part}, {kind} {low})"))
    words = f"<{size // 2} x i16>"
    whole = w.let(f"bitcast {kind} {control} to {words}")
    for bit in range(4, 4 + (len(parts) - 1).bit_length()):
        by = splat_constant(str(7 - bit), "i16")  # the bit becomes the sign of a byte
        shifted = w.let(f"shl {words} {whole}, {by}")
        signs = w.let(f"bitcast {words} {shifted} to {kind}")
        upper = f"<{size} x i1> {w.let(f'icmp slt {kind} {signs}, zeroinitializer')}"
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [w.let(f"select {upper}, {kind} {y}, {kind} {x}") for x, y in pairs]
    return found[0]


def _look_up_neon(w: LlvmWriter, parts: list[str], control: str) -> str:
    """Look 16 bytes up among 64 at a time; out-of-range indices give zero."""
    kind, total = "<16 x i8>", ""
    for k in range(0, len(parts), 4):
        group = parts[k : k + 4]
        near = control
        if k:
            here = splat_constant(scalar_constant(16 * k, lir.U8), "i8")
            near = w.let(f"sub {kind} {control}, {here}")
        tables = ", ".join(f"{kind} {part}" for part in group)
        name = f"llvm.aarch64.neon.tbl{len(group)}.v16i8"
        looked_up = w.let(f"call {kind} @{name}({tables}, {kind} {near})")
        total = w.let(f"or {kind} {total}, {looked_up}") if total else looked_up
    return total


def compress(w: LlvmWriter, a: lir.Value, mask: lir.Value) -> str:
    """Return the operand with the selected lanes first; other lanes are arbitrary."""
    text, element, lanes = type_text(a.type), a.type.element, a.type.lanes
    bits = 8 * element.bytes * lanes
    target = w.module.target
    wide = element.bytes >= 4 or target.has("avx512vbmi2")
    if target.has("avx512vl") and wide and bits in (128, 256, 512):
        name = f"@llvm.experimental.vector.compress.{mangled(a.type)}"
        operands = f"{w.typed(a)}, {w.typed(mask)}, {text} zeroinitializer"
        return w.let(f"call {text} {name}({operands})")
    if element.bytes == 4 and lanes == 8 and target.has("avx2"):
        return _compress_by_table(w, a, mask)
    # Every lane is stored; the next one overwrites it if it was not selected.
    scalar, vector, place, at = type_text(element), w.use(a), w.temp(), "0"
    align = min(64, element.bytes * lanes)
    w.allocas.append(f"  {place} = alloca [{lanes} x {scalar}], align 64")
    w.line(f"store {text} {vector}, ptr {place}, align {align}")
    for lane in range(lanes):
        item = w.let(f"extractelement {text} {vector}, i64 {lane}")
        to = w.let(f"getelementptr inbounds {scalar}, ptr {place}, i64 {at}")
        w.line(f"store {scalar} {item}, ptr {to}")
        bit = w.let(f"extractelement {w.typed(mask)}, i64 {lane}")
        at = w.let(f"add i64 {at}, {w.let(f'zext i1 {bit} to i64')}")
    return w.let(f"load {text}, ptr {place}, align {align}")


def _compress_by_table(w: LlvmWriter, a: lir.Value, mask: lir.Value) -> str:
    name = f"@{w.module.kernel}.selected"
    rows = []
    for bits in range(256):
        chosen = [lane for lane in range(8) if bits >> lane & 1]
        number = sum(lane << (8 * k) for k, lane in enumerate(chosen))
        rows.append(f"i64 {scalar_constant(number, lir.I64)}")
    w.module.declarations.add(
        f"{name} = internal constant [256 x i64] [{', '.join(rows)}], align 64"
    )
    bits_ = w.let(f"bitcast {w.typed(mask)} to i8")
    at = w.let(f"zext i8 {bits_} to i64")
    place = w.let(f"getelementptr inbounds i64, ptr {name}, i64 {at}")
    lanes = w.let(f"load <8 x i8>, ptr {place}, align 8")
    index = w.let(f"zext <8 x i8> {lanes} to <8 x i32>")
    values = w.use(a)
    if a.type.element.is_float:
        values = w.let(f"bitcast <8 x float> {values} to <8 x i32>")
    packed = w.let(
        f"call <8 x i32> @llvm.x86.avx2.permd(<8 x i32> {values}, <8 x i32> {index})"
    )
    if a.type.element.is_float:
        packed = w.let(f"bitcast <8 x i32> {packed} to <8 x float>")
    return packed
