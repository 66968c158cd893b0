"""Emit each LIR operation, memory access and call as LLVM instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from skforge.compiler.codegen.llvm.bytes import compress, permute_bytes, shuffles_bytes
from skforge.compiler.codegen.llvm.writer import (
    LlvmWriter,
    bits_of,
    chosen,
    compare_code,
    constant,
    int_of_width,
    mangled,
    memory_element,
    own_name,
    quoted,
    scalar_constant,
    splat_constant,
    type_text,
)
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import operands
from skforge.compiler.target import Target

#: The instruction on floats (if any), on signed and on unsigned integers, where it has
#: another name than the operation.
_BINARY: dict[lir.BinaryOp, tuple[str, str, str]] = {
    "div": ("fdiv", "sdiv", "udiv"),
    "rem": ("", "srem", "urem"),
    "min": ("", "smin", "umin"),
    "max": ("", "smax", "umax"),
    "shr": ("", "ashr", "lshr"),
}


def emit_let(w: LlvmWriter, stmt: lir.Let) -> None:
    value, op = stmt.value, stmt.op
    instruction = _INSTRUCTIONS.get(type(op))
    if instruction is not None:
        w.bind_value(value, instruction(w, value, op))
    else:
        w.bind(value.name, _OPERANDS[type(op)](w, value, op))


def _typed(w: LlvmWriter, op: lir.Op) -> str:
    return ", ".join([w.typed(value) for value in operands(op)])


def _intrinsic(value: lir.Value, name: str, given: str) -> str:
    return f"call {type_text(value.type)} @llvm.{name}.{mangled(value.type)}({given})"


def _unary(w: LlvmWriter, value: lir.Value, op: lir.Unary) -> str:
    match op.op:
        case "not":
            ones = "true" if value.type.element == lir.BOOL else "-1"
            if value.type.lanes:
                ones = splat_constant(ones, type_text(value.type.element))
            return f"xor {w.typed(op.a)}, {ones}"
        case "popcount":
            return _intrinsic(value, "ctpop", w.typed(op.a))
        case "zeros":
            return _intrinsic(value, "cttz", f"{w.typed(op.a)}, i1 false")


def _binary(w: LlvmWriter, value: lir.Value, op: lir.Binary) -> str:
    element = value.type.element
    both = f"f{op.op}" if op.op in ("add", "sub", "mul") else ""
    on_floats, signed, unsigned = _BINARY.get(op.op, (both, op.op, op.op))
    code = signed if element.is_signed else unsigned
    if element.is_float:
        code = on_floats
    if not code:
        raise w.module.fail(f"{op.op!r} has no meaning on {element.name}.")
    w.note_binary(value, op)
    if op.op in ("min", "max"):
        return _intrinsic(value, code, _typed(w, op))
    return f"{code} {w.typed(op.a)}, {w.use(op.b)}"


def _compare(w: LlvmWriter, value: lir.Value, op: lir.Compare) -> str:
    code = compare_code(op.op, op.a.type.element, op.unordered)
    return f"{code} {w.typed(op.a)}, {w.use(op.b)}"


def _any_true(w: LlvmWriter, value: lir.Value, op: lir.AnyTrue) -> str:
    whole = int_of_width(op.a.type)
    return f"icmp ne {whole} {w.let(f'bitcast {w.typed(op.a)} to {whole}')}, 0"


def _const(w: LlvmWriter, value: lir.Value, op: lir.Const) -> str:
    w.constants[value.name] = op.value
    return constant(op.value, value.type)


def _convert(w: LlvmWriter, value: lir.Value, op: lir.Convert) -> str:
    source, target = op.a.type.element, value.type.element
    text, operand = type_text(value.type), w.typed(op.a)
    if type_text(source) == type_text(target):  # signs are the instructions'
        return w.use(op.a)
    if source.is_float and target.is_float:
        code = "fptrunc" if target == lir.F32 else "fpext"
    elif source.is_float:
        # Out of range and NaN give poison, which freeze turns into some number. The
        # saturating conversion costs three more instructions that LIR does not need.
        code = "fptosi" if target.is_signed else "fptoui"
        return w.own(value, f"freeze {text} {w.let(f'{code} {operand} to {text}')}")
    elif target.is_float:
        code = "sitofp" if source.is_signed else "uitofp"
    elif bits_of(source) > bits_of(target):
        code = "trunc"
    else:
        code = "sext" if source.is_signed else "zext"
    if value.type == lir.I64 and source == lir.U32:
        w.note_extended(value)
    return w.own(value, f"{code} {operand} to {text}")


def _bitcast(w: LlvmWriter, value: lir.Value, op: lir.Bitcast) -> str:
    text = type_text(value.type)
    if type_text(op.a.type) == text:
        return w.use(op.a)
    return w.own(value, f"bitcast {w.typed(op.a)} to {text}")


def _iota(w: LlvmWriter, value: lir.Value, op: lir.Iota) -> str:
    element = value.type.element
    text = type_text(element)
    numbers = (scalar_constant(k, element) for k in range(value.type.lanes))
    return f"<{', '.join(f'{text} {number}' for number in numbers)}>"


def _pack(w: LlvmWriter, value: lir.Value, op: lir.Pack) -> str:
    text, lanes = type_text(value.type), "poison"
    for lane, part in enumerate(op.parts):
        lanes = w.let(f"insertelement {text} {lanes}, {w.typed(part)}, i64 {lane}")
    return lanes


def _mask_bits(w: LlvmWriter, value: lir.Value, op: lir.MaskBits) -> str:
    a, whole, text = op.a, int_of_width(op.a.type), type_text(value.type)
    if a.type.lanes > bits_of(value.type.element):
        raise w.module.fail(
            f"{a.type.lanes} lanes of {a.name!r} do not fit {text} {value.name!r}."
        )
    bits = w.let(f"bitcast {w.typed(a)} to {whole}")
    return bits if whole == text else w.own(value, f"zext {whole} {bits} to {text}")


def _warp_reduce(w: LlvmWriter, value: lir.Value, op: lir.WarpReduce) -> str:
    raise w.module.fail("WarpReduce must be legalised before the LLVM emitter.")


# ------------------------------------------------------------ memory


def _load(w: LlvmWriter, value: lir.Value, op: lir.Load) -> str:
    address = w.address(op.buffer, op.index)
    align = w.alignment(op.buffer, op.index)
    if value.type == lir.BOOL:
        return f"icmp ne i8 {w.let(f'load i8, ptr {address}, align {align}')}, 0"
    return f"load {type_text(value.type)}, ptr {address}, align {align}"


def _lane_addresses(w: LlvmWriter, buffer: lir.Buffer, index: lir.Value) -> str:
    # 32-bit indices stay narrow: the machine's gathers accept them.
    base = f"{memory_element(buffer.element)}, ptr {w.pointer(buffer)}"
    addresses = w.let(f"getelementptr inbounds {base}, {w.typed(index)}")
    align = w.element_alignment(buffer)
    return f"<{index.type.lanes} x ptr> align {align} {addresses}"


def _gather(w: LlvmWriter, value: lir.Value, op: lir.Gather) -> str:
    lanes, text = value.type.lanes, type_text(value.type)
    addresses = _lane_addresses(w, op.buffer, op.index)
    mask = w.typed(op.mask) if op.mask is not None else w.all_lanes(lanes)
    other = w.use(op.other) if op.other is not None else "zeroinitializer"
    name = f"@llvm.masked.gather.{mangled(value.type)}.v{lanes}p0"
    return f"call {text} {name}({addresses}, {mask}, {text} {other})"


def _store(w: LlvmWriter, stmt: lir.Store) -> None:
    stored = w.typed(stmt.value)
    if stmt.value.type == lir.BOOL:
        stored = f"i8 {w.let(f'zext {stored} to i8')}"
    address = w.address(stmt.buffer, stmt.index)
    align = w.alignment(stmt.buffer, stmt.index)
    w.line(f"store {stored}, ptr {address}, align {align}")


def _scatter(w: LlvmWriter, stmt: lir.Scatter) -> None:
    lanes = stmt.index.type.lanes
    addresses = _lane_addresses(w, stmt.buffer, stmt.index)
    mask = w.all_lanes(lanes)
    name = f"@llvm.masked.scatter.{mangled(stmt.value.type)}.v{lanes}p0"
    w.line(f"call void {name}({w.typed(stmt.value)}, {addresses}, {mask})")


def _atomic_add(w: LlvmWriter, stmt: lir.AtomicAdd) -> None:
    code = "fadd" if stmt.buffer.element.is_float else "add"
    address = w.address(stmt.buffer, stmt.index)
    w.line(f"atomicrmw {code} ptr {address}, {w.typed(stmt.value)} monotonic")


def _prefetch(w: LlvmWriter, stmt: lir.Prefetch) -> None:
    address = w.address(stmt.buffer, stmt.index, inbounds=False)
    locality = 4 - stmt.level
    w.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 {locality}, i32 1)")


def _touch(w: LlvmWriter, stmt: lir.Touch) -> None:
    # LLVM keeps a volatile load, although nothing uses it.
    w.line(f"load volatile i8, ptr {w.address(stmt.buffer, stmt.index)}")


# ------------------------------------------------------------ look-ups in registers

# LLVM recognises one-register permutes but not two-register ones, and turns a generic
# permute into a store and one load per lane; hence the intrinsics.

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
    if bits == 512 and target.has_mask_registers:
        needs = {"u8": "avx512vbmi", "u16": "avx512bw"}.get(element, "avx512f")
        if target.has(needs):
            return f"llvm.x86.avx512.{_AVX512[element][0]}"
    if bits == 256 and element in _AVX2 and target.has("avx2"):
        return f"llvm.x86.avx2.{_AVX2[element]}"
    return None


def _permute(w: LlvmWriter, value: lir.Value, op: lir.Permute) -> str:
    element, lanes = value.type.element, value.type.lanes
    tables: Sequence[lir.Value] = op.tables
    index, target = op.index, w.module.target
    has_halves = target.has("avx2") and not target.has_mask_registers
    if 8 * element.bytes * lanes == 512 and has_halves:
        if element.bytes == 8:
            return _by_pairs(w, value, tables, index)
        if element.name in _AVX2:
            return _by_halves(w, value, tables, index, op.within)
    if lanes > tables[0].type.lanes:
        tables = [_repeated(w, tables[0], element, lanes)]
    wide = tables[0].type.lanes
    bits = 8 * element.bytes * wide
    single = _one_register(w.module.target, element.name, bits)
    if single is None:
        if shuffles_bytes(w.module.target, element, len(tables) * wide, lanes):
            return permute_bytes(w, value, tables, index, op.within)
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
                f"call {text} @{single}({text} {w.use(part[0])}, {int_text} {where})"
            )
        if len(part) == 2 and bits == 512:
            two = f"llvm.x86.avx512.{_AVX512[element.name][1]}"
            low, high = w.use(part[0]), w.use(part[1])
            return w.let(
                f"call {text} @{two}({text} {low}, {int_text} {where}, {text} {high})"
            )
        half = len(part) // 2
        lower, upper = look_up(part[:half]), look_up(part[half:])
        is_upper = _bit_set(w, int_text, where, half * wide, element)
        mask = f"<{wide} x i1>"
        return w.let(f"select {mask} {is_upper}, {text} {upper}, {text} {lower}")

    looked_up = look_up(list(tables))
    return w.pick(f"{text} {looked_up}", range(lanes)) if lanes < wide else looked_up


def _repeated(
    w: LlvmWriter, table: lir.Value, element: lir.Scalar, lanes: int
) -> lir.Value:
    """Repeat a table, as indices are modulo its length; byte shuffles take 16 bytes."""
    size = table.type.lanes
    if _one_register(w.module.target, element.name, 8 * element.bytes * lanes) is None:
        lanes = min(lanes, max(size, 16 // element.bytes))
    if lanes == size:
        return table
    operand = w.pick(w.typed(table), [k % size for k in range(lanes)])
    return _bound(w, operand, lir.Vec(element, lanes))


def _bit_set(
    w: LlvmWriter, text: str, index: str, bit: int, element: lir.Scalar
) -> str:
    width = 8 * element.bytes
    if bit == 1 << (width - 1):
        return w.let(f"icmp slt {text} {index}, zeroinitializer")
    picked = w.let(f"and {text} {index}, {splat_constant(str(bit), f'i{width}')}")
    return w.let(f"icmp ne {text} {picked}, zeroinitializer")


def _bound(w: LlvmWriter, operand: str, type_: lir.Vec) -> lir.Value:
    value = lir.Value(w.temp(), type_)
    w.bind(value.name, operand)
    return value


def _by_halves(
    w: LlvmWriter,
    value: lir.Value,
    tables: Sequence[lir.Value],
    index: lir.Value,
    within: bool = False,
) -> str:
    wide = value.type.lanes // 2

    def halved(whole: lir.Value) -> list[lir.Value]:
        halves = range(0, whole.type.lanes, wide)
        half = lir.Vec(whole.type.element, wide)
        parts = (w.pick(w.typed(whole), range(at, at + wide)) for at in halves)
        return [_bound(w, part, half) for part in parts]

    parts = [
        half
        for table in tables
        for half in (halved(table) if table.type.lanes > wide else [table])
    ]
    type_ = lir.Vec(value.type.element, wide)
    low, high = (
        _permute(w, _bound(w, "poison", type_), lir.Permute(tuple(parts), some, within))
        for some in halved(index)
    )
    kind = type_text(type_)
    both = chosen(range(2 * wide))
    return w.let(f"shufflevector {kind} {low}, {kind} {high}, {both}")


def _by_pairs(
    w: LlvmWriter, value: lir.Value, tables: Sequence[lir.Value], index: lir.Value
) -> str:
    half = lir.Vec(lir.F32, 2 * value.type.lanes)
    kind, text = type_text(index.type), type_text(half)
    pairs = lir.Vec(lir.F32, 2 * tables[0].type.lanes)
    parts = []
    for table in tables:
        of_table = w.let(f"bitcast {w.typed(table)} to {type_text(pairs)}")
        parts.append(_bound(w, of_table, pairs))
    last = splat_constant(str(len(tables) * tables[0].type.lanes - 1), "i64")
    here = w.let(f"and {kind} {w.use(index)}, {last}")
    low = w.let(f"shl {kind} {here}, {splat_constant('1', 'i64')}")
    high = w.let(f"shl {kind} {low}, {splat_constant('32', 'i64')}")
    both = w.let(f"or {kind} {low}, {high}")
    both = w.let(f"or {kind} {both}, {splat_constant(str(1 << 32), 'i64')}")
    numbers = lir.Vec(lir.U32, half.lanes)
    where = w.let(f"bitcast {kind} {both} to {type_text(numbers)}")
    places = _bound(w, where, numbers)
    found = _by_halves(w, _bound(w, "poison", half), parts, places)
    return w.let(f"bitcast {text} {found} to {type_text(value.type)}")


def _through_memory(
    w: LlvmWriter, value: lir.Value, tables: Sequence[lir.Value], index: lir.Value
) -> str:
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


# ------------------------------------------------------------ planes: bit i is row i


def _mux(w: LlvmWriter, value: lir.Value, op: lir.PlaneMux) -> str:
    """Name AVX-512's instruction: LLVM's matching takes as long as a fold's rest."""
    type_, text = value.type, type_text(value.type)
    select, a, b = w.use(op.select), w.use(op.a), w.use(op.b)
    assert isinstance(type_, lir.Plane)
    bits = 128 if type_.vector else type_.rows
    if w.module.target.has_mask_registers and bits in (128, 256, 512):
        ternary = f"@llvm.x86.avx512.pternlog.q.{bits}"
        return w.let(
            f"call {text} {ternary}({text} {select}, {text} {a}, {text} {b}, i32 202)"
        )
    taken = w.let(f"and {text} {select}, {a}")
    ones = splat_constant("-1", "i64") if type_.rows >= 64 else "-1"
    inverse = w.let(f"xor {text} {select}, {ones}")
    other = w.let(f"and {text} {inverse}, {b}")
    return w.let(f"or {text} {taken}, {other}")


def _plane_address(
    w: LlvmWriter, access: lir.LoadPlane | lir.StorePlane, plane: lir.Value
) -> tuple[str, int]:
    if not isinstance(plane.type, lir.Plane):
        raise w.module.fail(f"{plane.name!r} is not a plane.")
    table, n_bytes = access.table, plane.type.rows // 8
    if table.element == lir.I64:
        n_bytes = table.element.bytes
    index = w.index(access.index)
    if index.startswith("%"):
        offset = w.let(f"mul i64 {index}, {n_bytes}")
    else:
        offset = str(int(index) * n_bytes)
    at = w.let(f"getelementptr inbounds i8, ptr {w.pointer(table)}, i64 {offset}")
    first = w.multiple_of(access.index)
    return at, gcd(table.alignment or table.element.bytes, first * n_bytes)


def _load_plane(w: LlvmWriter, value: lir.Value, op: lir.LoadPlane) -> str:
    at, align = _plane_address(w, op, value)
    text, masks = type_text(value.type), w.module.target.has_mask_registers
    if value.type != lir.Plane(64, vector=True) or not masks:
        return f"load {text}, ptr {at}, align {align}"
    # Where one instruction chooses, loads decide; longer ones may cross a cache line.
    loaded = w.let(f"load i64, ptr {at}, align {align}")
    return f"insertelement {text} poison, i64 {loaded}, i64 0"


def _store_plane(w: LlvmWriter, stmt: lir.StorePlane) -> None:
    (at, align), stored = _plane_address(w, stmt, stmt.value), w.typed(stmt.value)
    if stmt.value.type == lir.Plane(64, vector=True):
        stored = f"i64 {w.let(f'extractelement {stored}, i64 0')}"
    w.line(f"store {stored}, ptr {at}, align {align}")


def _planes_to_index(w: LlvmWriter, value: lir.Value, op: lir.PlanesToIndex) -> str:
    """Join planes as a tree: in a chain each masked move waits for the one before."""
    lanes, text = value.type.lanes, type_text(value.type)
    element = type_text(value.type.element)
    parts = []
    for place, plane in enumerate(reversed(op.planes)):
        bits = w.let(f"bitcast {w.typed(plane)} to <{lanes} x i1>")
        bit = f"{text} {splat_constant(str(1 << place), element)}"
        part = w.let(f"select <{lanes} x i1> {bits}, {bit}, {text} zeroinitializer")
        parts.append(part)
    while len(parts) > 1:
        pairs = zip(parts[0::2], parts[1::2], strict=False)
        joined = [w.let(f"or {text} {a}, {b}") for a, b in pairs]
        parts = joined + parts[len(parts) & ~1 :]
    return parts[0]


# ------------------------------------------------------------ what only routines have

_SWAPS = {"swap": "xchg", "sub": "sub"}


def _call(w: LlvmWriter, stmt: lir.Call) -> None:
    args, gives = stmt.args, "void"
    if stmt.results:
        gives = type_text(stmt.results[0].type)
    if stmt.symbol:
        function = f"@{quoted(stmt.symbol)}"
        types = ", ".join(type_text(arg.type) for arg in args)
        w.module.symbols[stmt.symbol] = f"declare {gives} {function}({types})"
    else:
        function, args = w.let(f"inttoptr {w.typed(args[0])} to ptr"), args[1:]
    call = f"call {gives} {function}({', '.join(map(w.typed, args))})"
    if stmt.results:
        w.bind_value(stmt.results[0], call)
    else:
        w.line(call)


def _symbol(w: LlvmWriter, name: str) -> str:
    text = f"@{quoted(name)}"
    w.module.symbols.setdefault(name, f"{text} = external global i8")
    return f"ptrtoint (ptr {text} to i64)"


#: What ``_symbol`` returns.
_SYMBOL = re.compile(r"ptrtoint \(ptr (@.+) to i64\)")


def _view(w: LlvmWriter, stmt: lir.View | lir.Window) -> None:
    if isinstance(stmt, lir.Window):
        pointer = w.address(stmt.base, stmt.index, inbounds=False)
    elif symbol := _SYMBOL.fullmatch(w.use(stmt.address)):
        pointer = symbol[1]
    else:
        address = w.typed(stmt.address)
        pointer = w.let(f"inttoptr {address} to ptr", own_name(stmt.buffer))
    w.bind("@" + stmt.buffer.name, pointer)


def _atomic(w: LlvmWriter, stmt: lir.Atomic) -> None:
    text, args = type_text(stmt.buffer.element), [w.typed(arg) for arg in stmt.args]
    at = f"ptr {w.address(stmt.buffer, stmt.index)}"
    order, end = stmt.order, f"{stmt.order}, align {stmt.buffer.element.bytes}"
    match stmt.op:
        case "load":
            w.bind_value(stmt.results[0], f"load atomic {text}, {at} {end}")
        case "store":
            w.line(f"store atomic {args[0]}, {at} {end}")
        case "replace":
            failed = {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)
            pair = f"cmpxchg {at}, {args[0]}, {args[1]} {order} {failed}"
            pair = w.let(f"{pair}, align {stmt.buffer.element.bytes}")
            w.bind_value(stmt.results[0], f"extractvalue {{ {text}, i1 }} {pair}, 1")
        case "swap" | "sub":
            code = _SWAPS[stmt.op]
            w.bind_value(stmt.results[0], f"atomicrmw {code} {at}, {args[0]} {end}")


# ------------------------------------------------------------ the tables

#: The instruction whose result is an operation's value.
_INSTRUCTIONS: dict[type[Any], Callable[[LlvmWriter, lir.Value, Any], str]] = {
    lir.Address: lambda w, value, op: (
        f"ptrtoint ptr {w.address(op.buffer, op.index, inbounds=False)} to i64"
    ),
    lir.Unary: _unary,
    lir.Binary: _binary,
    lir.MultiplyAdd: lambda w, value, op: _intrinsic(value, "fma", _typed(w, op)),
    lir.Compare: _compare,
    lir.Select: lambda w, value, op: f"select {_typed(w, op)}",
    lir.Extract: lambda w, value, op: f"extractelement {_typed(w, op)}, i64 {op.lane}",
    lir.Shuffle: lambda w, value, op: (
        f"shufflevector {_typed(w, op)}, {chosen(op.lanes)}"
    ),
    lir.AnyTrue: _any_true,
    lir.Load: _load,
    lir.Gather: _gather,
    lir.LoadPlane: _load_plane,
}

#: The operand that holds an operation's value, after the instructions that make it.
_OPERANDS: dict[type[Any], Callable[[LlvmWriter, lir.Value, Any], str]] = {
    lir.Symbol: lambda w, value, op: _symbol(w, op.name),
    lir.Const: _const,
    lir.Convert: _convert,
    lir.Bitcast: _bitcast,
    lir.Splat: lambda w, value, op: w.splat(
        w.use(op.a), type_text(op.a.type), value.type.lanes
    ),
    lir.Iota: _iota,
    lir.Threads: lambda w, value, op: w.operand("$threads", "i64", "i64"),
    lir.Pack: _pack,
    lir.Permute: _permute,
    lir.Compress: lambda w, value, op: compress(w, op.a, op.mask),
    lir.MaskBits: _mask_bits,
    lir.WarpReduce: _warp_reduce,
    lir.PlaneMux: _mux,
    lir.PlanesToIndex: _planes_to_index,
}

#: Writes a statement on memory, or one that only routines have.
STATEMENTS: dict[type[Any], Callable[[LlvmWriter, Any], None]] = {
    lir.Store: _store,
    lir.Scatter: _scatter,
    lir.AtomicAdd: _atomic_add,
    lir.Prefetch: _prefetch,
    lir.Touch: _touch,
    lir.StorePlane: _store_plane,
    lir.View: _view,
    lir.Window: _view,
    lir.Call: _call,
    lir.Atomic: _atomic,
}
