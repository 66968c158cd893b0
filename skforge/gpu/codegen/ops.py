"""Emit each LIR operation and memory access as C++ text, lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import TypeAlias

from skforge.compiler.ir.lir import nodes as lir
from skforge.gpu.codegen.writer import (
    CudaWriter,
    OperandTexts,
    from_bits,
    literal,
    to_bits,
)

_SYMBOL: dict[lir.BinaryOp, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|",
    "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_COMPARE: dict[lir.CompareOp, str] = {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_INVERSE: dict[lir.CompareOp, str] = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<"}
# A look-up in more entries than this uses an array in local memory.
_SELECT_ENTRIES = 16


def emit_let(w: CudaWriter, stmt: lir.Let) -> None:
    value, op = stmt.value, stmt.op
    match op:
        case lir.Const(value=number):
            w.constants[value.name] = number
            text = literal(number, value.type.element)
            w.bind(value, (text,) * max(1, value.type.lanes))
        case lir.Binary(op=kind, a=a, b=b):
            write = binary_text(kind, value.type.element)
            pairs = zip(w.lanes(a), w.lanes(b), strict=True)
            w.write(value, [write(x, y) for x, y in pairs])
            w.note_binary(value, op)
        case lir.MultiplyAdd(a=a, b=b, c=c):
            name = "fmaf" if value.type.element == lir.F32 else "fma"
            triples = zip(w.lanes(a), w.lanes(b), w.lanes(c), strict=True)
            w.write(value, [f"{name}({x}, {y}, {z})" for x, y, z in triples])
        case lir.Load():
            emit_load(w, value, op)
        case lir.Compare(op=kind, a=a, b=b, unordered=unordered):
            floats = a.type.element.is_float
            pairs = zip(w.lanes(a), w.lanes(b), strict=True)
            texts = [compare_text(kind, x, y, floats, unordered) for x, y in pairs]
            w.write(value, texts)
        case lir.Select(cond=cond, a=a, b=b):
            lanes, conds = w.lanes(a), w.lanes(cond)
            if len(conds) < len(lanes):
                conds *= len(lanes)
            triples = zip(conds, lanes, w.lanes(b), strict=True)
            w.write(value, [f"{c} ? {x} : {y}" for c, x, y in triples])
            if not value.type.lanes:
                w.note_multiple(value, min(w.multiple_of(a), w.multiple_of(b)))
        case lir.Convert(a=a):
            _convert(w, value, a)
        case lir.Unary(op=kind, a=a):
            element = value.type.element
            w.write(value, [_unary(w, kind, element, x) for x in w.lanes(a)])
        case lir.Bitcast(a=a):
            source, target = a.type.element, value.type.element
            if source == target:
                w.bind(value, w.lanes(a))
            else:
                w.write(value, cut(source, w.lanes(a), target))
        case lir.Splat(a=a):
            w.bind(value, (w.use(a),) * value.type.lanes)
        case lir.Iota():
            element = value.type.element
            w.bind(value, tuple(literal(k, element) for k in range(value.type.lanes)))
        case lir.Threads():
            raise w.fail("Threads inside a launch: they share a CPU's loops.")
        case lir.Extract(a=a, lane=lane):
            w.bind(value, (w.lanes(a)[lane],))
        case lir.Pack(parts=parts):
            w.bind(value, tuple(w.use(part) for part in parts))
        case lir.Shuffle(a=a, b=b, lanes=chosen):
            joined = (*w.lanes(a), *w.lanes(b))
            w.bind(value, tuple(joined[k] for k in chosen))
        case lir.Permute(tables=tables, index=index):
            _permute(w, value, tables, index)
        case lir.Compress(a=a, mask=mask):
            _compress(w, value, a, mask)
        case lir.MaskBits(a=a):
            element = value.type.element
            wide = "u64" if element.bytes == 8 else "u32"
            bits = " | ".join(
                f"({wide}){lane} << {k}" if k else f"({wide}){lane}"
                for k, lane in enumerate(w.lanes(a))
            )
            w.write(value, [f"({element.name})({bits})"])
        case lir.AnyTrue(a=a):
            w.write(value, [" || ".join(w.lanes(a))])
        case lir.Gather():
            emit_gather(w, value, op)
        case lir.WarpReduce():
            _warp_reduce(w, value, op)
        case _:
            where = f"{type(op).__name__} (%{value.name})"
            raise w.fail(f"{where}: GPU kernels have no planes.")


def binary_text(kind: lir.BinaryOp, element: lir.Scalar) -> Callable[[str, str], str]:
    name = element.name
    if kind in ("min", "max"):
        order = "<" if kind == "min" else ">"
        return lambda a, b: f"{a} {order} {b} ? {a} : {b}"
    symbol = _SYMBOL[kind]
    if name in ("u8", "u16"):
        # Widened first: a product of two u16 as ints would overflow.
        return lambda a, b: f"({name})((u32){a} {symbol} (u32){b})"
    if kind in ("add", "sub", "mul", "shl") and element.is_signed:
        return lambda a, b: f"skf_{kind}({a}, {b})"
    if element == lir.BOOL:
        return lambda a, b: f"(bool)({a} {symbol} {b})"
    return lambda a, b: f"{a} {symbol} {b}"


def compare_text(
    kind: lir.CompareOp, a: str, b: str, floats: bool, unordered: bool
) -> str:
    """Return a comparison; C++ compares floats ordered, except for ``!=``."""
    if floats and (kind, unordered) in (("eq", True), ("ne", False)):
        differ = f"{a} < {b} || {a} > {b}"
        return f"!({differ})" if unordered else differ
    if floats and unordered and kind != "ne":
        return f"!({a} {_INVERSE[kind]} {b})"
    return f"{a} {_COMPARE[kind]} {b}"


def _unary(w: CudaWriter, kind: str, element: lir.Scalar, a: str) -> str:
    name = element.name
    match kind:
        case "not":
            return f"!{a}" if element == lir.BOOL else f"({name})~{a}"
        case "popcount":
            if element.bytes == 8:
                return f"({name})SKF_POPC64((u64){a})"
            return f"({name})SKF_POPC32((u32){a})"
        case "zeros":
            if element.bytes == 8:
                return f"({name})SKF_CTZ64((u64){a})"
            # A bit above a narrow type's, so that zero has as many zeros as bits.
            guard = f" | {1 << 8 * element.bytes}u" if element.bytes < 4 else ""
            return f"({name})SKF_CTZ32((u32){a}{guard})"
        case _:
            raise w.fail(f"no unary operation {kind!r}.")


def _convert(w: CudaWriter, value: lir.Value, a: lir.Value) -> None:
    source, target = a.type.element, value.type.element
    if source == target:
        w.bind(value, w.lanes(a))
        return
    # Out of a narrow type's range any value is allowed; the i32 in between must fit.
    through = "(i32)" if source.is_float and target.name in ("u8", "u16") else ""
    w.write(value, [f"({target.name}){through}{x}" for x in w.lanes(a)])
    if not value.type.lanes and not source.is_float and not target.is_float:
        w.note_multiple(value, w.multiple_of(a))


def _warp_reduce(w: CudaWriter, value: lir.Value, op: lir.WarpReduce) -> None:
    """Write the butterfly; narrow integers are exchanged as u32."""
    if op.width > 32:
        raise w.fail(f"WarpReduce over {op.width} threads; a warp has 32.")
    threads = prod(w.threads or (1,))
    if threads % op.width:
        raise w.fail(f"WarpReduce over {op.width} threads in blocks of {threads}.")
    name = value.type.element.name
    total, offset = w.use(op.a), op.width // 2
    narrow = name in ("u8", "u16")
    while offset:
        sent = f"(u32){total}" if narrow else total
        moved = f"SKF_SHFL_XOR({sent}, {offset}, {op.width})"
        if narrow:
            text = f"({name})((u32){total} + {moved})"
        elif name in ("i32", "i64"):
            text = f"skf_add({total}, {moved})"
        else:
            text = f"{total} + {moved}"
        total, offset = w.names.new(value.name), offset // 2
        w.line(f"const {name} {total} = {text};")
    w.bind(value, (total,))


def _permute(
    w: CudaWriter, value: lir.Value, tables: tuple[lir.Value, ...], index: lir.Value
) -> None:
    entries = [lane for table in tables for lane in w.lanes(table)]
    lanes, name = w.lanes(index), value.type.element.name
    if len(entries) == 1:
        w.bind(value, tuple(entries * len(lanes)))
        return
    wide = "u64" if index.type.element.bytes == 8 else "u32"
    last = len(entries) - 1
    if len(entries) <= _SELECT_ENTRIES:
        texts = []
        for lane in lanes:
            selector = w.names.new("pick")
            w.line(f"const {wide} {selector} = ({wide}){lane};")
            texts.append(_pick(entries, selector))
        w.write(value, texts)
        return
    table = w.names.new("table")
    w.line(f"const {name} {table}[{len(entries)}] = {{{', '.join(entries)}}};")
    w.write(value, [f"{table}[({wide}){lane} & {last}u]" for lane in lanes])


def _pick(entries: list[str], selector: str) -> str:
    if len(entries) == 1:
        return entries[0]
    half = len(entries) // 2
    low, high = _pick(entries[:half], selector), _pick(entries[half:], selector)
    return f"({selector} & {half}u ? {high} : {low})"


def _compress(w: CudaWriter, value: lir.Value, a: lir.Value, mask: lir.Value) -> None:
    name = value.type.element.name
    *lanes, last = w.lanes(a)
    packed = [last]  # any value will do where it is not selected
    for lane, chosen in zip(lanes[::-1], w.lanes(mask)[-2::-1], strict=True):
        pairs = zip([lane, *packed], [*packed, packed[-1]], strict=True)
        packed = []
        for on, off in pairs:
            packed.append(on if on == off else w.names.new(value.name))
            if on != off:
                w.line(f"const {name} {packed[-1]} = {chosen} ? {on} : {off};")
    w.bind(value, tuple(packed))


# ---------------------------------------------------------------- memory

# Loads and stores of any type at any alignment. An access as wide as the buffer's
# element is a plain index. Other accesses are split into pieces as wide as the proven
# alignment allows, up to 16 bytes, and shifts extract lanes from pieces or combine
# them. Both vendors' memory is little-endian, and neither allows a word access at an
# address that is not a multiple of its size.

_WORDS = {1: "u8", 2: "u16_a", 4: "u32_a", 8: "u64_a"}
_FIELDS = "xyzw"
_WIDEST = 16


def pieces(n_bytes: int, alignment: int) -> list[tuple[int, int]]:
    """Return (offset, bytes) of naturally aligned pieces that make up a range.

    Examples
    --------
    >>> pieces(12, 16), pieces(6, 4), pieces(4, 1)
    ([(0, 8), (8, 4)], [(0, 4), (4, 2)], [(0, 1), (1, 1), (2, 1), (3, 1)])
    """
    parts, offset = [], 0
    while offset < n_bytes:
        size = gcd(alignment, offset) if offset else alignment
        size = min(size, _WIDEST, 1 << ((n_bytes - offset).bit_length() - 1))
        parts.append((offset, size))
        offset += size
    return parts


def _address(buffer: str, index: str) -> str:
    return buffer if index in ("0", "0LL") else f"{buffer} + {index}"


def load_scalar(
    pointer: str, of: lir.Scalar, index: str, result: lir.Scalar, alignment: int
) -> str:
    if result == of:
        text = f"{pointer}[{index}]"
        return f"{text} != 0" if of == lir.BOOL else text
    address = f"(const u8*)({_address(pointer, index)})"
    parts = pieces(result.bytes, alignment)
    if len(parts) == 1:
        return from_bits(result, f"*(const {_WORDS[result.bytes]}*)({address})")
    words = {
        offset: (size, f"*(const {_WORDS[size]}*)({address} + {offset})")
        for offset, size in parts
    }
    return from_bits(result, _bits(words, 0, result.bytes))


#: Parts of some memory: from their offset to their bytes and text.
_Words: TypeAlias = dict[int, tuple[int, str]]


def _terms(words: _Words, start: int, size: int) -> list[str]:
    terms = []
    wide = "u64" if size > 4 else "u32"
    for offset, (n_bytes, text) in words.items():
        if offset <= start and start + size <= offset + n_bytes:
            shift = 8 * (start - offset)
            return [f"({text} >> {shift})" if shift else text]
        if start <= offset < start + size:
            shift = 8 * (offset - start)
            terms.append(f"(({wide}){text} << {shift})" if shift else f"({wide}){text}")
    return terms


def _bits(words: _Words, start: int, size: int) -> str:
    """Return ``size`` bytes at an offset as an expression that needs no brackets."""
    terms = _terms(words, start, size)
    return terms[0] if len(terms) == 1 else f"({' | '.join(terms)})"


def emit_load(w: CudaWriter, value: lir.Value, op: lir.Load) -> None:
    buffer, index = op.buffer, op.index
    pointer, first = w.pointer(buffer), w.use(index)
    element, lanes = value.type.element, value.type.lanes
    alignment = w.alignment(buffer, index)
    if not lanes:
        text = load_scalar(pointer, buffer.element, first, element, alignment)
        w.write(value, [text])
        return
    size = element.bytes
    if element == buffer.element and alignment <= size:
        cells = [f"{first} + {lane}" if lane else first for lane in range(lanes)]
        w.write(value, [f"{pointer}[{cell}]" for cell in cells])
        return
    bits = _load_bits(
        w, f"(const u8*)({_address(pointer, first)})", size, lanes, alignment
    )
    w.write(value, [from_bits(element, text) for text in bits])


def _load_bits(
    w: CudaWriter, address: str, size: int, lanes: int, alignment: int
) -> list[str]:
    parts = pieces(size * lanes, alignment)
    base = w.names.new("at")
    w.line(f"const u8* const {base} = {address};")
    unit = max(4, size)
    words: _Words = {}
    for offset, n_bytes in parts:
        where = f"{base} + {offset}" if offset else base
        name = w.names.new("word")
        if n_bytes > unit:
            kind = f"u{8 * unit}x{n_bytes // unit}"
            w.line(f"const {kind} {name} = *(const {kind}*)({where});")
            for k in range(n_bytes // unit):
                words[offset + k * unit] = (unit, f"{name}.{_FIELDS[k]}")
        else:
            kind = _WORDS[n_bytes]
            w.line(
                f"const {kind.removesuffix('_a')} {name} = *(const {kind}*)({where});"
            )
            words[offset] = (n_bytes, name)
    return [_bits(words, k * size, size) for k in range(lanes)]


def cut(source: lir.Scalar, lanes: Sequence[str], target: lir.Scalar) -> list[str]:
    words, size = _lane_words(source, lanes), target.bytes
    return [
        from_bits(target, _bits(words, offset, size))
        for offset in range(0, source.bytes * len(lanes), size)
    ]


def _lane_words(element: lir.Scalar, lanes: Sequence[str]) -> _Words:
    size = element.bytes
    return {k * size: (size, to_bits(element, x)) for k, x in enumerate(lanes)}


def store_lanes(
    w: CudaWriter,
    buffer: lir.Buffer,
    index: str,
    element: lir.Scalar,
    lanes: OperandTexts,
    alignment: int,
) -> None:
    pointer, size = w.pointer(buffer), element.bytes
    if element == buffer.element and (alignment <= size or len(lanes) == 1):
        for lane, text in enumerate(lanes):
            where = f"{index} + {lane}" if lane else index
            w.line(f"{pointer}[{where}] = {text};")
        return
    address = f"(u8*)({_address(pointer, index)})"
    parts = pieces(size * len(lanes), alignment)
    if len(parts) > 1:
        base = w.names.new("at")
        w.line(f"u8* const {base} = {address};")
        address = base
    unit = max(4, size)
    words = _lane_words(element, lanes)
    for offset, n_bytes in parts:
        where = f"{address} + {offset}" if offset else address
        if n_bytes > unit:
            kind = f"u{8 * unit}x{n_bytes // unit}"
            word = ", ".join(
                " | ".join(_terms(words, offset + k, unit))
                for k in range(0, n_bytes, unit)
            )
            name = w.names.new("word")
            w.line(f"const {kind} {name} = {{{word}}};")
            w.line(f"*({kind}*)({where}) = {name};")
        else:
            kind = _WORDS[n_bytes]
            word = " | ".join(_terms(words, offset, n_bytes))
            w.line(f"*({kind}*)({where}) = ({kind.removesuffix('_a')})({word});")


def emit_store(w: CudaWriter, stmt: lir.Store) -> None:
    alignment = w.alignment(stmt.buffer, stmt.index)
    element, lanes = stmt.value.type.element, w.lanes(stmt.value)
    store_lanes(w, stmt.buffer, w.use(stmt.index), element, lanes, alignment)


def emit_gather(w: CudaWriter, value: lir.Value, op: lir.Gather) -> None:
    element, of = value.type.element, op.buffer.element
    pointer = w.pointer(op.buffer)
    alignment = w.element_alignment(op.buffer)
    indices = w.lanes(op.index)
    texts = [load_scalar(pointer, of, index, element, alignment) for index in indices]
    if op.mask is not None and op.other is not None:
        lanes = zip(w.lanes(op.mask), texts, w.lanes(op.other), strict=True)
        texts = [f"{mask} ? {text} : {other}" for mask, text, other in lanes]
    w.write(value, texts)


def emit_scatter(w: CudaWriter, stmt: lir.Scatter) -> None:
    element = stmt.value.type.element
    alignment = w.element_alignment(stmt.buffer)
    values = w.lanes(stmt.value)
    for lane, index in enumerate(w.lanes(stmt.index)):
        store_lanes(w, stmt.buffer, index, element, (values[lane],), alignment)


def emit_atomic_add(w: CudaWriter, stmt: lir.AtomicAdd) -> None:
    element = stmt.buffer.element
    address = f"{w.pointer(stmt.buffer)} + {w.use(stmt.index)}"
    value = w.use(stmt.value)
    match element.name:
        case "f32" | "f64" | "i32" | "u32":
            w.line(f"SKF_ATOMIC_ADD({address}, {value});")
        case "i64":  # the hardware adds unsigned ones; the bits are the same
            w.line(f"SKF_ATOMIC_ADD((u64*)({address}), (u64){value});")
        case _:
            raise w.fail(f"AtomicAdd to {element.name} @{stmt.buffer.name}.")


def emit_prefetch(w: CudaWriter, stmt: lir.Prefetch) -> None:
    w.line(f"SKF_PREFETCH({w.pointer(stmt.buffer)} + {w.use(stmt.index)});")
