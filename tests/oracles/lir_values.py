"""LIR operations on values, as Python text.

Each operation becomes one or two lines of Python over local variables. Integers are
Python ints wrapped after each operation; floats are NumPy scalars of their own width;
vectors, masks and planes are NumPy arrays that are never written again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Scalar, Type, Value
from tests.oracles import lir_memory as memory

BITS = {"bool": 1, "u8": 8, "i16": 16, "u16": 16, "u32": 32, "i32": 32, "i64": 64}

PureOp: TypeAlias = (
    lir.Const
    | lir.Unary
    | lir.Binary
    | lir.MultiplyAdd
    | lir.Compare
    | lir.Select
    | lir.Convert
    | lir.Bitcast
    | lir.Splat
    | lir.Iota
    | lir.Extract
    | lir.Pack
    | lir.Permute
    | lir.Shuffle
    | lir.Compress
    | lir.MaskBits
    | lir.AnyTrue
)

# Names that the text may use.
NAMESPACE: dict[str, Any] = {
    **{name: dtype.type for name, dtype in memory.DTYPES.items() if name != "bool"},
    **{f"d_{name}": dtype for name, dtype in memory.DTYPES.items()},
    "np": np,
    **{
        function.__name__: function
        for function in (
            memory.allocate,
            memory.window,
            memory.bitcast,
            memory.check_shift,
            memory.compress,
            memory.count_zeros,
            memory.divide,
            memory.divide_lanes,
            memory.fault,
            memory.fused,
            memory.gather,
            memory.load_bytes,
            memory.mask_bits,
            memory.out_of_range,
            memory.popcount_lanes,
            memory.remainder,
            memory.remainder_lanes,
            memory.run_warps,
            memory.scatter,
            memory.store_bytes,
            memory.truncate,
        )
    },
}

_SYMBOL = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>",
}  # fmt: skip
COMPARISON = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_INVERSE = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<"}


def limits(scalar: Scalar) -> tuple[int, int]:
    """Return the least and greatest integer of a type."""
    bits = BITS[scalar.name]
    if scalar.name.startswith("i"):
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


def wrapped(scalar: Scalar, text: str) -> str:
    """Return an expression for ``text`` reduced to the range of an integer type."""
    low, high = limits(scalar)
    mask = high - low
    return f"(({text} + {-low}) & {mask}) - {-low}" if low else f"({text}) & {mask}"


def _wrap(scalar: Scalar, out: str, expression: str) -> list[str]:
    low, high = limits(scalar)
    if not low:
        return [f"{out} = ({expression}) & {high}"]
    # Tested first: wrapping is rare and makes longer Python integers.
    wrap = wrapped(scalar, out)
    return [f"{out} = {expression}", f"if not {low} <= {out} <= {high}: {out} = {wrap}"]


def constant(value: int | float | bool, type_: Type) -> Any:
    """Return a constant as the interpreter holds it."""
    element = type_.element
    lanes = type_.lanes
    if lanes:
        return np.full(lanes, value, memory.DTYPES[element.name])
    if element.is_float:
        return memory.DTYPES[element.name].type(value)
    return bool(value) if element == lir.BOOL else int(value)


def op_lines(
    out: str, type_: Type, op: PureOp, name: Callable[[Value], str]
) -> list[str]:
    """Return the lines that assign ``op`` to ``out``; ``name`` writes an operand."""
    element, lanes = type_.element, type_.lanes
    match op:
        case lir.Const():
            raise AssertionError("constants are bound before the program runs")
        case lir.Unary(op=kind, a=a):
            return _unary(out, kind, element, lanes, name(a))
        case lir.Binary(op=kind, a=a, b=b):
            return _binary(out, kind, element, lanes, name(a), name(b))
        case lir.MultiplyAdd(a=a, b=b, c=c):
            text = f"fused({name(a)}, {name(b)}, {name(c)}, d_{element.name})"
            return [f"{out} = {text}"]
        case lir.Compare(op=kind, a=a, b=b, unordered=unordered):
            is_float = a.type.element.is_float
            text = comparison(kind, unordered and is_float, is_float, name(a), name(b))
            return [f"{out} = {text if lanes else text.replace('~', 'not ')}"]
        case lir.Select(cond=cond, a=a, b=b):
            if cond.type.lanes:
                return [f"{out} = np.where({name(cond)}, {name(a)}, {name(b)})"]
            return [f"{out} = {name(a)} if {name(cond)} else {name(b)}"]
        case lir.Convert(a=a):
            return [f"{out} = {_convert(element, lanes, a.type.element, name(a))}"]
        case lir.Bitcast(a=a):
            if element == lir.BOOL:
                return [f"{out} = {name(a)} >> np.arange({lanes}) & 1 == 1"]
            source = f"d_{a.type.element.name}"
            text = f"bitcast({name(a)}, {source}, d_{element.name}, {lanes})"
            return [f"{out} = {scalar_text(element, lanes, text)}"]
        case lir.Splat(a=a):
            return [f"{out} = np.full({lanes}, {name(a)}, d_{element.name})"]
        case lir.Iota():
            return [f"{out} = np.arange({lanes}).astype(d_{element.name})"]
        case lir.Extract(a=a, lane=lane):
            return [f"{out} = {scalar_text(element, 0, f'{name(a)}[{lane}]')}"]
        case lir.Pack(parts=parts):
            lanes_text = ", ".join(name(part) for part in parts)
            return [f"{out} = np.array([{lanes_text}], d_{element.name})"]
        case lir.Permute(tables=tables, index=index):
            joined = f"np.concatenate([{', '.join(name(t) for t in tables)}])"
            size = len(tables) * tables[0].type.lanes
            return [f"{out} = {joined}[{name(index)}.astype(np.int64) % {size}]"]
        case lir.Shuffle(a=a, b=b, lanes=chosen):
            joined = f"np.concatenate([{name(a)}, {name(b)}])"
            return [f"{out} = {joined}[{list(chosen)}]"]
        case lir.Compress(a=a, mask=mask):
            return [f"{out} = compress({name(a)}, {name(mask)})"]
        case lir.MaskBits(a=a):
            return _wrap(element, out, f"mask_bits({name(a)})")
        case lir.AnyTrue(a=a):
            return [f"{out} = bool({name(a)}.any())"]


def scalar_text(element: Scalar, lanes: int, text: str) -> str:
    """Turn a NumPy integer or bool into a Python one; leave the rest."""
    if lanes or element.is_float:
        return text
    return f"bool({text})" if element == lir.BOOL else f"int({text})"


def comparison(kind: str, unordered: bool, is_float: bool, a: str, b: str) -> str:
    """Return a comparison as NumPy text; ``~`` for not."""
    if not is_float:
        return f"{a} {COMPARISON[kind]} {b}"
    if kind == "eq":
        return f"~(({a} < {b}) | ({a} > {b}))" if unordered else f"{a} == {b}"
    if kind == "ne":
        return f"{a} != {b}" if unordered else f"({a} < {b}) | ({a} > {b})"
    if unordered:
        return f"~({a} {_INVERSE[kind]} {b})"
    return f"{a} {COMPARISON[kind]} {b}"


def _unary(out: str, kind: str, element: Scalar, lanes: int, a: str) -> list[str]:
    if kind == "not":
        if element == lir.BOOL:
            return [f"{out} = {'~' if lanes else 'not '}{a}"]
        return [f"{out} = ~{a}"] if lanes else _wrap(element, out, f"~{a}")
    if kind == "popcount":
        if lanes:
            return [f"{out} = popcount_lanes({a})"]
        mask = (1 << BITS[element.name]) - 1  # of negative numbers, their bits
        return [f"{out} = bin({a} & {mask}).count('1')"]
    counted = f"count_zeros({a}, {BITS[element.name]})"
    return [f"{out} = {scalar_text(element, lanes, counted)}"]


def _binary(
    out: str, kind: str, element: Scalar, lanes: int, a: str, b: str
) -> list[str]:
    if kind in ("and", "or", "xor") or element.is_float:
        return [f"{out} = {a} {_SYMBOL[kind]} {b}"]
    if kind in ("min", "max"):
        if lanes:
            return [f"{out} = np.{kind}imum({a}, {b})"]
        order = "<=" if kind == "min" else ">="
        return [f"{out} = {a} if {a} {order} {b} else {b}"]
    if kind in ("div", "rem"):
        function = "divide" if kind == "div" else "remainder"
        if lanes:
            return [f"{out} = {function}_lanes({a}, {b})"]
        low, high = limits(element)
        return [f"{out} = {function}({a}, {b}, {low}, {high})"]
    lines = []
    if kind in ("shl", "shr"):
        bits = BITS[element.name]
        if not b.isdecimal() or int(b) >= bits:
            wrong = "" if lanes else f"if not 0 <= {b} < {bits}: "
            lines.append(f"{wrong}check_shift({b}, {bits})")
    text = f"{a} {_SYMBOL[kind]} {b}"
    if lanes or kind == "shr":
        return [*lines, f"{out} = {text}"]
    return [*lines, *_wrap(element, out, text)]


def _convert(element: Scalar, lanes: int, source: Scalar, a: str) -> str:
    if lanes:
        return f"{a}.astype(d_{element.name})"
    if element.is_float:
        if source.is_float or source == lir.BOOL or element == lir.F64:
            return f"{element.name}({a})"
        # Not f32(a): Python would round to f64 first.
        return f"i64({a}).astype(d_f32)"
    low, high = limits(element)
    if source.is_float:
        return f"truncate({a}, {low}, {high})"
    if source == lir.BOOL:
        return f"int({a})"
    source_low, source_high = limits(source)
    if low <= source_low and source_high <= high:
        return a
    return wrapped(element, a)
