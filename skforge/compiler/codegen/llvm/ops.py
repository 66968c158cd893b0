"""Emit each LIR operation as LLVM instructions."""

from __future__ import annotations

from collections.abc import Sequence

from skforge._compat import assert_never
from skforge.compiler.codegen.llvm import calls, planes
from skforge.compiler.codegen.llvm.bytes import compress, permute_bytes, shuffles_bytes
from skforge.compiler.codegen.llvm.types import (
    bits_of,
    chosen,
    compare_code,
    mangled,
    scalar_constant,
    splat_constant,
    type_text,
)
from skforge.compiler.codegen.llvm.writer import Writer, int_of_width, memory_element
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target

#: The instruction on floats (if any), on signed and on unsigned integers.
_BINARY: dict[lir.BinaryOp, tuple[str, str, str]] = {
    "add": ("fadd", "add", "add"),
    "sub": ("fsub", "sub", "sub"),
    "mul": ("fmul", "mul", "mul"),
    "div": ("fdiv", "sdiv", "udiv"),
    "rem": ("", "srem", "urem"),
    "min": ("", "smin", "umin"),
    "max": ("", "smax", "umax"),
    "and": ("", "and", "and"),
    "or": ("", "or", "or"),
    "xor": ("", "xor", "xor"),
    "shl": ("", "shl", "shl"),
    "shr": ("", "ashr", "lshr"),
}


def emit_let(w: Writer, stmt: lir.Let) -> None:
    """Write one operation and bind its result."""
    value, op = stmt.value, stmt.op
    match op:  # the most frequent ones first
        case lir.Binary():
            _binary(w, value, op)
            w.note_binary(value, op)
        case lir.MultiplyAdd(a=a, b=b, c=c):
            operands = f"{w.typed(a)}, {w.typed(b)}, {w.typed(c)}"
            _intrinsic(w, value, "fma", operands)
        case lir.Load(buffer=buffer, index=index):
            _load(w, value, buffer, index)
        case lir.Const(value=number):
            w.bind_constant(value, number)
        case lir.LoadPlane(table=table, index=index):
            planes.load_plane(w, value, table, index)
        case lir.PlaneMux(select=select, a=a, b=b):
            mixed = planes.mux(w, value.type, w.use(select), w.use(a), w.use(b))
            w.bind(value.name, mixed)
        case lir.Convert(a=a):
            _convert(w, value, a)
            if value.type == lir.I64 and a.type == lir.U32:
                w.note_extended(value)
        case lir.Unary():
            _unary(w, value, op)
        case lir.Compare(op=name, a=a, b=b, unordered=unordered):
            code = compare_code(name, a.type.element, unordered)
            w.bind_value(value, f"{code} {w.typed(a)}, {w.use(b)}")
        case lir.Select(cond=cond, a=a, b=b):
            w.bind_value(value, f"select {w.typed(cond)}, {w.typed(a)}, {w.typed(b)}")
        case lir.Bitcast(a=a):
            if type_text(a.type) == type_text(value.type):
                w.bind(value.name, w.use(a))
            else:
                w.bind_value(value, f"bitcast {w.typed(a)} to {type_text(value.type)}")
        case lir.Splat(a=a):
            lanes = value.type.lanes
            w.bind(value.name, w.splat(w.use(a), type_text(a.type), lanes))
        case lir.Iota():
            element = value.type.element
            text = type_text(element)
            items = (scalar_constant(i, element) for i in range(value.type.lanes))
            w.bind(value.name, f"<{', '.join(f'{text} {item}' for item in items)}>")
        case lir.Threads():
            w.bind(value.name, w.operand("$threads", "i64", "i64"))
        case lir.Extract(a=a, lane=lane):
            w.bind_value(value, f"extractelement {w.typed(a)}, i64 {lane}")
        case lir.Pack(parts=parts):
            text, made = type_text(value.type), "poison"
            for lane, part in enumerate(parts):
                one = f"insertelement {text} {made}, {w.typed(part)}, i64 {lane}"
                made = w.let(one)
            w.bind(value.name, made)
        case lir.Permute(tables=tables, index=index):
            w.bind(value.name, permute(w, value, tables, index))
        case lir.Shuffle(a=a, b=b, lanes=lanes):
            both = f"{w.typed(a)}, {w.typed(b)}"
            w.bind_value(value, f"shufflevector {both}, {chosen(lanes)}")
        case lir.Compress(a=a, mask=mask):
            w.bind(value.name, compress(w, a, mask))
        case lir.MaskBits(a=a):
            _mask_bits(w, value, a)
        case lir.AnyTrue(a=a):
            whole = int_of_width(a.type)
            bits = w.let(f"bitcast {w.typed(a)} to {whole}")
            w.bind_value(value, f"icmp ne {whole} {bits}, 0")
        case lir.Gather():
            _gather(w, value, op)
        case lir.PlanesToIndex(planes=bits):
            planes.planes_to_index(w, value, bits)
        case lir.Symbol(name=symbol):
            calls.emit_symbol(w, value, symbol)
        case lir.Address(buffer=buffer, index=index):
            place = w.address(buffer, index, inbounds=False)
            w.bind_value(value, f"ptrtoint ptr {place} to i64")
        case lir.WarpReduce():
            raise w.module.fail("WarpReduce must be legalised before the LLVM emitter.")
        case _:
            assert_never(op)


def _intrinsic(w: Writer, value: lir.Value, name: str, operands: str) -> None:
    function = f"@llvm.{name}.{mangled(value.type)}"
    w.bind_value(value, f"call {type_text(value.type)} {function}({operands})")


def _unary(w: Writer, value: lir.Value, op: lir.Unary) -> None:
    element = value.type.element
    match op.op:
        case "not":
            ones = "true" if element == lir.BOOL else "-1"
            if value.type.lanes:
                ones = splat_constant(ones, type_text(element))
            w.bind_value(value, f"xor {w.typed(op.a)}, {ones}")
        case "popcount":
            _intrinsic(w, value, "ctpop", w.typed(op.a))
        case "zeros":
            _intrinsic(w, value, "cttz", f"{w.typed(op.a)}, i1 false")
        case _:
            assert_never(op.op)


def _binary(w: Writer, value: lir.Value, op: lir.Binary) -> None:
    text, element = type_text(value.type), value.type.element
    a, b = w.use(op.a), w.use(op.b)
    on_floats, signed, unsigned = _BINARY[op.op]
    code = signed if element.is_signed else unsigned
    if element.is_float:
        code = on_floats
    if not code:
        raise w.module.fail(f"{op.op!r} has no meaning on {element.name}.")
    if op.op in ("min", "max"):
        _intrinsic(w, value, code, f"{text} {a}, {text} {b}")
    else:
        w.bind_value(value, f"{code} {text} {a}, {b}")


def _convert(w: Writer, value: lir.Value, a: lir.Value) -> None:
    source, target = a.type.element, value.type.element
    text, operand = type_text(value.type), w.typed(a)
    if type_text(source) == type_text(target):  # signs are the instructions'
        w.bind(value.name, w.use(a))
        return
    if source.is_float and target.is_float:
        code = "fptrunc" if target == lir.F32 else "fpext"
    elif source.is_float:
        # Out of range and NaN give poison, which freeze turns into some number. The
        # saturating conversion costs three more instructions that LIR does not need.
        code = "fptosi" if target.is_signed else "fptoui"
        poison = w.let(f"{code} {operand} to {text}")
        w.bind_value(value, f"freeze {text} {poison}")
        return
    elif target.is_float:
        code = "sitofp" if source.is_signed else "uitofp"
    elif bits_of(source) > bits_of(target):
        code = "trunc"
    else:
        code = "sext" if source.is_signed else "zext"
    w.bind_value(value, f"{code} {operand} to {text}")


def _mask_bits(w: Writer, value: lir.Value, a: lir.Value) -> None:
    whole, text = int_of_width(a.type), type_text(value.type)
    width = bits_of(value.type.element)
    if a.type.lanes > width:
        raise w.module.fail(
            f"{a.type.lanes} lanes of {a.name!r} do not fit {text} {value.name!r}."
        )
    bits = w.let(f"bitcast {w.typed(a)} to {whole}")
    if whole == text:
        w.bind(value.name, bits)
    else:
        w.bind_value(value, f"zext {whole} {bits} to {text}")


# ------------------------------------------------------------ memory


def _load(w: Writer, value: lir.Value, buffer: lir.Buffer, index: lir.Value) -> None:
    address, align = w.address(buffer, index), w.alignment(buffer, index)
    if value.type == lir.BOOL:
        byte = w.let(f"load i8, ptr {address}, align {align}")
        w.bind_value(value, f"icmp ne i8 {byte}, 0")
    else:
        text = type_text(value.type)
        w.bind_value(value, f"load {text}, ptr {address}, align {align}")


def _lane_addresses(w: Writer, buffer: lir.Buffer, index: lir.Value) -> str:
    """Return a vector of addresses, preceded by its type."""
    # 32-bit indices stay narrow: the machine's gathers accept them.
    addresses = w.let(
        f"getelementptr inbounds {memory_element(buffer.element)}, "
        f"ptr {w.pointer(buffer)}, {w.typed(index)}"
    )
    align = w.element_alignment(buffer)
    return f"<{index.type.lanes} x ptr> align {align} {addresses}"


def _gather(w: Writer, value: lir.Value, op: lir.Gather) -> None:
    lanes, text = value.type.lanes, type_text(value.type)
    addresses = _lane_addresses(w, op.buffer, op.index)
    mask = w.typed(op.mask) if op.mask is not None else w.all_lanes(lanes)
    other = w.use(op.other) if op.other is not None else "zeroinitializer"
    name = f"@llvm.masked.gather.{mangled(value.type)}.v{lanes}p0"
    w.bind_value(value, f"call {text} {name}({addresses}, {mask}, {text} {other})")


def emit_store(w: Writer, stmt: lir.Store) -> None:
    """Write a scalar or vector store."""
    stored = w.typed(stmt.value)
    if stmt.value.type == lir.BOOL:
        stored = f"i8 {w.let(f'zext {stored} to i8')}"
    address = w.address(stmt.buffer, stmt.index)
    align = w.alignment(stmt.buffer, stmt.index)
    w.line(f"store {stored}, ptr {address}, align {align}")


def emit_scatter(w: Writer, stmt: lir.Scatter) -> None:
    """Write a lane-wise store."""
    lanes = stmt.index.type.lanes
    addresses = _lane_addresses(w, stmt.buffer, stmt.index)
    mask = w.all_lanes(lanes)
    name = f"@llvm.masked.scatter.{mangled(stmt.value.type)}.v{lanes}p0"
    w.line(f"call void {name}({w.typed(stmt.value)}, {addresses}, {mask})")


def emit_atomic_add(w: Writer, stmt: lir.AtomicAdd) -> None:
    """Write a relaxed atomic addition."""
    code = "fadd" if stmt.buffer.element.is_float else "add"
    address = w.address(stmt.buffer, stmt.index)
    w.line(f"atomicrmw {code} ptr {address}, {w.typed(stmt.value)} monotonic")


def emit_prefetch(w: Writer, stmt: lir.Prefetch) -> None:
    """Write a read prefetch into every cache level."""
    address = w.address(stmt.buffer, stmt.index, inbounds=False)
    w.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")


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
