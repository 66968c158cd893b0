"""The host part of a GPU function as data: integers, scratch, copies and launches."""

from __future__ import annotations

from collections.abc import Callable

from skforge.compiler.codegen.cuda import host_plan
from skforge.compiler.codegen.cuda.host_plan import HostFor, HostLet, HostStmt, evaluate
from skforge.compiler.codegen.cuda.writer import Host
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import operands

MakeKernel = Callable[[Host, lir.Grid], host_plan.Launch]


def emit_host(host: Host, make_kernel: MakeKernel) -> tuple[HostStmt, ...]:
    """Return the host's statements, making the kernels on the way."""
    for param in host.function.params:
        if isinstance(param, lir.Buffer):
            host.buffers[param.name] = param
            host.names["@" + param.name] = param.name
        else:
            host.values[param.name] = param
            host.names[param.name] = param.name
    return _body(host, host.function.body, make_kernel)


def _body(host: Host, body: lir.Body, make_kernel: MakeKernel) -> tuple[HostStmt, ...]:
    made: list[HostStmt] = []
    for stmt in body:
        match stmt:
            case lir.Let(value=value, op=op):
                let = _let(host, value, op)
                if let is not None:
                    made.append(let)
            case lir.Alloc(buffer=buffer, size=size):
                if buffer.space != "global":
                    raise host.fail(
                        f"@{buffer.name} in {buffer.space} memory, outside launches."
                    )
                name = host.names["@" + buffer.name] = "@" + buffer.name
                host.buffers[buffer.name] = buffer
                host.scratch.add(buffer.name)
                made.append(
                    host_plan.Scratch(name, buffer.element.name, _operand(host, size))
                )
            case lir.For():
                made.append(_for(host, stmt, make_kernel))
            case lir.Grid():
                made.append(make_kernel(host, stmt))
            case lir.Transfer(kind=kind, buffer=buffer):
                shape = tuple(_operand(host, value) for value in stmt.shape)
                made.append(
                    host_plan.Transfer(kind, buffer.name, buffer.element.name, shape)
                )
            case _:
                raise host.fail(f"{type(stmt).__name__} outside a launch.")
    return tuple(made)


def _bind(host: Host, value: lir.Value) -> str:
    name = host.names[value.name] = "%" + value.name
    host.values[value.name] = value
    return name


def _operand(host: Host, value: lir.Value) -> host_plan.Operand:
    number = host.constants.get(value.name)
    if number is not None:
        return int(number)
    found = host.names.get(value.name)
    if found is None:
        raise host.fail(f"%{value.name} is used before it is bound.")
    return found


def _let(host: Host, value: lir.Value, op: lir.Op) -> HostLet | None:
    """Return a host computation; None for a constant."""
    if not isinstance(value.type, lir.Scalar):
        raise host.fail(f"%{value.name} outside a launch is not a scalar.")
    if isinstance(op, lir.Const):
        host.constants[value.name] = op.value
        return None
    match op:
        case lir.Unary(op="not") | lir.Binary() | lir.Compare():
            code: str = op.op
        case lir.Select() | lir.Convert():
            code = type(op).__name__.lower()
        case _:
            raise host.fail(f"{type(op).__name__} (%{value.name}) outside a launch.")
    if any(getattr(v.type, "is_float", True) for v in (value, *operands(op))):
        raise host.fail(f"%{value.name} outside a launch is computed of floats.")
    args = tuple(_operand(host, v) for v in operands(op))
    let = HostLet("%" + value.name, value.type.name, code, args)
    numbers = [a for a in args if isinstance(a, int)]
    if len(numbers) == len(args):
        host.constants[value.name] = evaluate(let, numbers)
        return None
    _bind(host, value)
    if isinstance(op, lir.Binary):
        host.note_binary(value, op)
    elif isinstance(op, lir.Convert):
        host.note_multiple(value, host.multiple_of(op.a))
    return let


def _for(host: Host, stmt: lir.For, make_kernel: MakeKernel) -> HostFor:
    lo, hi, step = (_operand(host, v) for v in (stmt.lo, stmt.hi, stmt.step))
    inits = tuple(_operand(host, v) for v in stmt.inits)
    var = _bind(host, stmt.var)
    host.note_loop(stmt)
    params = tuple(_bind(host, v) for v in stmt.params)
    body = _body(host, stmt.body, make_kernel)
    yields = tuple(_operand(host, v) for v in stmt.yields)
    results = tuple(_bind(host, v) for v in stmt.results)
    return HostFor(var, lo, hi, step, body, inits, params, yields, results)
