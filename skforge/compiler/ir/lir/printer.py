"""Print LIR as stable text: one statement per line, with types and indented bodies.

    func add_one(%n: i64, @x: f32, @tile: u8 shared align 64) {
      %c.1: i64 = const 0
      for %i.2: i64 = %c.1 to %n step %one {
        %load.3: f32 = load @x[%i.2]
        store @x[%i.2] = %load.3
      }
    }

Values start with ``%``, buffers with ``@``. A buffer shows how it differs from a plain
global array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.operations import OPERATIONS
from skforge.compiler.ir.lir.walk import buffers_of


def print_lir(function: lir.Function) -> str:
    params = ", ".join(
        _bound(p) if isinstance(p, lir.Value) else _declared(p) for p in function.params
    )
    lines = [f"func {function.name}({params}) {{"]
    lines.extend("  " + line for line in _body(function.body))
    return "\n".join([*lines, "}", ""])


def print_stmt(stmt: lir.Stmt) -> str:
    return next(_stmt(stmt))


def print_type(type_: lir.Type) -> str:
    match type_:
        case lir.Scalar(name=name):
            return name
        case lir.Vec(element=element, lanes=lanes):
            return f"vec<{element.name}, {lanes}>"
        case lir.Mask(lanes=lanes):
            return f"mask<{lanes}>"
        case lir.Plane(rows=rows, vector=vector):
            return f"plane<{rows}{', vector' * vector}>"


def _bound(value: lir.Value) -> str:
    return f"%{value.name}: {print_type(value.type)}"


def _declared(buffer: lir.Buffer) -> str:
    text = f"@{buffer.name}: {buffer.element.name}"
    if buffer.space != "global":
        text += f" {buffer.space}"
    if buffer.alignment:
        text += f" align {buffer.alignment}"
    return text


def _names(values: Sequence[lir.Value]) -> str:
    return ", ".join("%" + v.name for v in values)


_STATEMENTS: dict[type[Any], str] = {
    lir.Store: "store {buffer}[{index}] = {value}",
    lir.Scatter: "scatter {buffer}[{index}] = {value}",
    lir.AtomicAdd: "atomic_add {buffer}[{index}] += {value}",
    lir.Prefetch: "prefetch l{level} {buffer}[{index}]",
    lir.Touch: "touch {buffer}[{index}]",
    lir.StorePlane: "store_plane {table}[{index}] = {value}",
    lir.Call: "call {symbol}({args})",
    lir.Atomic: "atomic {op} {order} {buffer}[{index}] ({args})",
}
# Fields that may be absent, with the text that precedes them.
_OPTIONAL = {"mask": " where ", "other": " else ", "unordered": " ", "within": " "}


def _line(node: lir.Op | lir.Stmt) -> str:
    words = {f.name: _word(f, getattr(node, f.name)) for f in fields(node)}
    kind = type(node)
    operation = OPERATIONS.get(kind)
    text = operation.text if operation else _STATEMENTS.get(kind)
    if text:
        return text.format_map(words)
    return f"{name_of(node)} {', '.join(map(str, words.values()))}".rstrip()


def name_of(node: lir.Op | lir.Stmt) -> str:
    kind = getattr(node, "op", None)  # the operator of what has several
    if isinstance(kind, str):
        return kind
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(node).__name__).lower()


def _word(field: Field[Any], value: Any) -> Any:
    match value:
        case lir.Value():
            text = "%" + value.name
        case lir.Buffer():
            text = "@" + value.name
        case tuple():
            text = ", ".join(str(_word(field, item)) for item in value)
        case True if field.name in _OPTIONAL:
            text = field.name
        case _:
            text = value
    if field.default is MISSING or field.name not in _OPTIONAL:
        return text
    return "" if value in (None, False) else _OPTIONAL[field.name] + text


def _body(body: Sequence[lir.Stmt]) -> Iterator[str]:
    for stmt in body:
        yield from _stmt(stmt)


def _blocks(
    *blocks: tuple[str, Sequence[lir.Stmt], Sequence[lir.Value]],
) -> Iterator[str]:
    for head, body, yields in blocks:
        yield head
        for line in _body(body):
            yield "  " + line
        if yields:
            yield f"  yield {_names(yields)}"
    yield "}"


def _results(results: Sequence[lir.Value]) -> str:
    return ", ".join(map(_bound, results)) + " = " if results else ""


def _carry(params: Sequence[lir.Value], inits: Sequence[lir.Value]) -> str:
    pairs = zip(params, inits, strict=False)
    text = ", ".join(f"{_bound(p)} = %{i.name}" for p, i in pairs)
    return f" carry ({text})" if text else ""


def _dims(dims: Sequence[tuple[lir.GridDim, lir.Value, lir.Value]]) -> str:
    return ", ".join(f"{dim} {_bound(var)} < %{count.name}" for dim, var, count in dims)


def _stmt(stmt: lir.Stmt) -> Iterator[str]:
    results = _results(getattr(stmt, "results", ()))
    match stmt:
        case lir.Let(value=value, op=op):
            yield f"{_bound(value)} = {_line(op)}"
        case lir.Alloc(buffer=buffer, size=size):
            yield f"alloc {_declared(buffer)} size %{size.name}"
        case lir.For():
            bounds = f"%{stmt.lo.name} to %{stmt.hi.name} step %{stmt.step.name}"
            carry = _carry(stmt.params, stmt.inits)
            head = f"{results}for {_bound(stmt.var)} = {bounds}{carry} {{"
            yield from _blocks((head, stmt.body, stmt.yields))
        case lir.While():
            head = f"{results}while{_carry(stmt.params, stmt.inits)} {{"
            again = f"}} %{stmt.cond.name} {{", stmt.body, stmt.yields
            yield from _blocks((head, stmt.before, ()), again)
        case lir.If():
            sides = [(f"{results}if %{stmt.cond.name} {{", stmt.then, stmt.then_yields)]
            if stmt.orelse or stmt.else_yields:
                sides.append(("} else {", stmt.orelse, stmt.else_yields))
            yield from _blocks(*sides)
        case lir.Switch(cases=cases):
            yield f"{results}switch %{stmt.selector.name} {{"
            heads = [*(f"{number}:" for number in range(len(cases) - 1)), "else:"]
            yields = (*stmt.yields, *[()] * len(cases))
            yield from _blocks(*zip(heads, cases, yields, strict=False))
        case lir.ParallelFor(var=var, count=count):
            head = f"parallel_for {_bound(var)} < %{count.name} {{"
            yield from _blocks((head, stmt.body, ()))
        case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
            yield from _blocks((f"{name_of(stmt)} {_dims(dims)} {{", stmt.body, ()))
        case lir.Transfer(kind="upload", buffer=buffer):
            yield f"upload @{buffer.name} <once>"
        case lir.Transfer(kind=copy, buffer=buffer, shape=shape):
            yield f"{copy} @{buffer.name}[{_names(shape)}] <unless on the device>"
        case lir.View(buffer=buffer, address=address):
            yield f"view {_declared(buffer)} at %{address.name}"
        case lir.Window(buffer=buffer, base=base, index=index):
            yield f"view {_declared(buffer)} at @{base.name}[%{index.name}]"
        case lir.Call() | lir.Atomic():
            yield f"{results}{_line(stmt)}"
        case lir.Named(name=name):
            read = {f"@{b.name}": b for s in stmt.body for b in _read(s)}
            args = ", ".join([*read, *(f"%{arg.name}" for arg in stmt.args)])
            yield f"{results}{name}({args})"
        case _:
            yield _line(stmt)


def _read(stmt: lir.Stmt) -> Sequence[lir.Buffer]:
    return buffers_of(stmt.op) if isinstance(stmt, lir.Let) else ()
