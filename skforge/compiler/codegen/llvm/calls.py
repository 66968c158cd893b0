"""Emit what only routines have: calls, views of memory, atomic accesses."""

from __future__ import annotations

import re

from skforge.compiler.codegen.llvm.types import quoted, type_text
from skforge.compiler.codegen.llvm.writer import LlvmWriter, own_name
from skforge.compiler.ir.lir import nodes as lir

_SWAPS = {"swap": "xchg", "sub": "sub"}


def emit_call(w: LlvmWriter, stmt: lir.Call) -> None:
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


def symbol_text(w: LlvmWriter, name: str) -> str:
    text = f"@{quoted(name)}"
    w.module.symbols.setdefault(name, f"{text} = external global i8")
    return f"ptrtoint (ptr {text} to i64)"


#: What ``symbol_text`` returns.
_SYMBOL = re.compile(r"ptrtoint \(ptr (@.+) to i64\)")


def emit_view(w: LlvmWriter, stmt: lir.View | lir.Window) -> None:
    if isinstance(stmt, lir.Window):
        pointer = w.address(stmt.base, stmt.index, inbounds=False)
    elif symbol := _SYMBOL.fullmatch(w.use(stmt.address)):
        pointer = symbol[1]
    else:
        address = w.typed(stmt.address)
        pointer = w.let(f"inttoptr {address} to ptr", own_name(stmt.buffer))
    w.bind("@" + stmt.buffer.name, pointer)


def emit_atomic(w: LlvmWriter, stmt: lir.Atomic) -> None:
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
