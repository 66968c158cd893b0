"""Emit loads and stores of any type at any alignment as C++ text.

An access as wide as the buffer's element is a plain index. Other accesses are split
into pieces as wide as the proven alignment allows, up to 16 bytes, and shifts extract
lanes from pieces or combine them. Both vendors' memory is little-endian, and neither
allows a word access at an address that is not a multiple of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TypeAlias

from skforge.compiler.ir.lir import nodes as lir
from skforge.gpu.codegen.writer import CudaWriter, OperandTexts, from_bits, to_bits

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
    parts, at = [], 0
    while at < n_bytes:
        size = gcd(alignment, at) if at else alignment
        size = min(size, _WIDEST, 1 << ((n_bytes - at).bit_length() - 1))
        parts.append((at, size))
        at += size
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
        at: (size, f"*(const {_WORDS[size]}*)({address} + {at})") for at, size in parts
    }
    return from_bits(result, _bits(words, 0, result.bytes))


#: Parts of some memory: from their offset to their bytes and text.
_Words: TypeAlias = dict[int, tuple[int, str]]


def _terms(words: _Words, start: int, size: int) -> list[str]:
    terms = []
    wide = "u64" if size > 4 else "u32"
    for at, (n_bytes, text) in words.items():
        if at <= start and start + size <= at + n_bytes:
            shift = 8 * (start - at)
            return [f"({text} >> {shift})" if shift else text]
        if start <= at < start + size:
            shift = 8 * (at - start)
            terms.append(f"(({wide}){text} << {shift})" if shift else f"({wide}){text}")
    return terms


def _bits(words: _Words, start: int, size: int) -> str:
    """Return ``size`` bytes at an offset as an expression that needs no brackets."""
    terms = _terms(words, start, size)
    return terms[0] if len(terms) == 1 else f"({' | '.join(terms)})"


def emit_load(w: CudaWriter, value: lir.Value, op: lir.Load) -> None:
    buffer, index = op.buffer, op.index
    pointer, at = w.pointer(buffer), w.use(index)
    element, lanes = value.type.element, value.type.lanes
    alignment = w.alignment(buffer, index)
    if not lanes:
        text = load_scalar(pointer, buffer.element, at, element, alignment)
        w.write(value, [text])
        return
    size = element.bytes
    if element == buffer.element and alignment <= size:
        places = [f"{at} + {lane}" if lane else at for lane in range(lanes)]
        w.write(value, [f"{pointer}[{place}]" for place in places])
        return
    bits = _load_bits(
        w, f"(const u8*)({_address(pointer, at)})", size, lanes, alignment
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
    for at, n_bytes in parts:
        where = f"{base} + {at}" if at else base
        name = w.names.new("word")
        if n_bytes > unit:
            kind = f"u{8 * unit}x{n_bytes // unit}"
            w.line(f"const {kind} {name} = *(const {kind}*)({where});")
            for k in range(n_bytes // unit):
                words[at + k * unit] = (unit, f"{name}.{_FIELDS[k]}")
        else:
            kind = _WORDS[n_bytes]
            w.line(
                f"const {kind.removesuffix('_a')} {name} = *(const {kind}*)({where});"
            )
            words[at] = (n_bytes, name)
    return [_bits(words, k * size, size) for k in range(lanes)]


def cut(source: lir.Scalar, lanes: Sequence[str], target: lir.Scalar) -> list[str]:
    if source == target:
        return list(lanes)
    words, size = _lane_words(source, lanes), target.bytes
    return [
        from_bits(target, _bits(words, at, size))
        for at in range(0, source.bytes * len(lanes), size)
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
    for at, n_bytes in parts:
        where = f"{address} + {at}" if at else address
        if n_bytes > unit:
            kind = f"u{8 * unit}x{n_bytes // unit}"
            word = ", ".join(
                " | ".join(_terms(words, at + k, unit)) for k in range(0, n_bytes, unit)
            )
            name = w.names.new("word")
            w.line(f"const {kind} {name} = {{{word}}};")
            w.line(f"*({kind}*)({where}) = {name};")
        else:
            kind = _WORDS[n_bytes]
            word = " | ".join(_terms(words, at, n_bytes))
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
    place = f"{w.pointer(stmt.buffer)} + {w.use(stmt.index)}"
    value = w.use(stmt.value)
    match element.name:
        case "f32" | "f64" | "i32" | "u32":
            w.line(f"SKF_ATOMIC_ADD({place}, {value});")
        case "i64":  # the hardware adds unsigned ones; the bits are the same
            w.line(f"SKF_ATOMIC_ADD((u64*)({place}), (u64){value});")
        case _:
            raise w.fail(f"AtomicAdd to {element.name} @{stmt.buffer.name}.")


def emit_prefetch(w: CudaWriter, stmt: lir.Prefetch) -> None:
    w.line(f"SKF_PREFETCH({w.pointer(stmt.buffer)} + {w.use(stmt.index)});")
