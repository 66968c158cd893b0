"""LIR as stable, readable text: one statement a line, types shown, bodies indented.

    func add_one(%n: i64, @x: f32, @tile: u8 shared align 64) {
      %c.1: i64 = const 0
      for %i.2: i64 = %c.1 to %n step %one {
        %load.3: f32 = load @x[%i.2]
        store @x[%i.2] = %load.3
      }
    }

Values start with ``%``, buffers with ``@``. A buffer shows what differs from a plain
global array in natural row order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skforge._compat import assert_never
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import (
    Buffer,
    Mask,
    Op,
    Plane,
    Scalar,
    Stmt,
    Type,
    Value,
    Vec,
)


def print_lir(function: lir.Function) -> str:
    """Return ``function`` as text, ending with a newline."""
    params = ", ".join(
        _bound(p) if isinstance(p, Value) else _declared(p) for p in function.params
    )
    lines = [f"func {function.name}({params}) {{"]
    lines.extend("  " + line for line in _body(function.body))
    return "\n".join([*lines, "}", ""])


def print_stmt(stmt: Stmt) -> str:
    """Return the first line of a statement, without what it contains."""
    return next(_stmt(stmt))


def print_type(type_: Type) -> str:
    """Return a type as text, such as ``vec<f32, 8>``."""
    match type_:
        case Scalar(name=name):
            return name
        case Vec(element=element, lanes=lanes):
            return f"vec<{element.name}, {lanes}>"
        case Mask(lanes=lanes):
            return f"mask<{lanes}>"
        case Plane(rows=rows):
            return f"plane<{rows}>"
        case _:
            assert_never(type_)


def print_row_order(order: lir.RowOrder) -> str:
    """Return a row order as text, such as ``transposed(64)``."""
    size = order.bytes_per_plane
    return f"{order.kind}({size})" if size else order.kind


# ---------------------------------------------------------------- parts of a line


def _bound(value: Value) -> str:
    return f"%{value.name}: {print_type(value.type)}"


def _declared(buffer: Buffer) -> str:
    text = f"@{buffer.name}: {buffer.element.name}"
    if buffer.space != "global":
        text += f" {buffer.space}"
    if buffer.alignment:
        text += f" align {buffer.alignment}"
    if buffer.row_order != lir.NATURAL:
        text += f" {print_row_order(buffer.row_order)}"
    return text


def _at(buffer: Buffer, index: Value) -> str:
    return f"@{buffer.name}[%{index.name}]"


def _names(values: Sequence[Value]) -> str:
    return ", ".join("%" + v.name for v in values)


def _flag(unordered: bool) -> str:
    return " unordered" if unordered else ""


def _op(op: Op) -> str:
    match op:
        case lir.Const(value=value):
            return f"const {value!r}"
        case lir.Unary(op=name, a=a):
            return f"{name} %{a.name}"
        case lir.Binary(op=name, a=a, b=b):
            return f"{name} %{a.name}, %{b.name}"
        case lir.Compare(op=name, a=a, b=b, unordered=unordered):
            return f"compare {name}{_flag(unordered)} %{a.name}, %{b.name}"
        case lir.Select(cond=cond, a=a, b=b):
            return f"select {_names((cond, a, b))}"
        case lir.Convert(a=a):
            return f"convert %{a.name}"
        case lir.Bitcast(a=a):
            return f"bitcast %{a.name}"
        case lir.Splat(a=a):
            return f"splat %{a.name}"
        case lir.Iota():
            return "iota"
        case lir.Threads():
            return "threads"
        case lir.Extract(a=a, lane=lane):
            return f"extract %{a.name}, {lane}"
        case lir.Pack(parts=parts):
            return f"pack {_names(parts)}"
        case lir.Permute(tables=tables, index=index):
            return f"permute [{_names(tables)}] by %{index.name}"
        case lir.Shuffle(a=a, b=b, lanes=lanes):
            return f"shuffle %{a.name}, %{b.name} <{', '.join(map(str, lanes))}>"
        case lir.Compress(a=a, mask=mask):
            return f"compress %{a.name} where %{mask.name}"
        case lir.MaskBits(a=a):
            return f"mask_bits %{a.name}"
        case lir.AnyTrue(a=a):
            return f"any_true %{a.name}"
        case lir.Load(buffer=buffer, index=index):
            return f"load {_at(buffer, index)}"
        case lir.Gather(buffer=buffer, index=index, mask=mask, other=other):
            where = f" where %{mask.name}" if mask else ""
            default = f" else %{other.name}" if other else ""
            return f"gather {_at(buffer, index)}{where}{default}"
        case lir.CompareToPlane(op=name, unordered=unordered):
            operands = _names((op.column, op.scalar))
            return f"compare_to_plane {name}{_flag(unordered)} {operands}"
        case lir.PlaneBinary(op=name, a=a, b=b):
            return f"plane_{name} %{a.name}, %{b.name}"
        case lir.PlaneNot(a=a):
            return f"plane_not %{a.name}"
        case lir.PlaneMux(select=select, a=a, b=b):
            return f"plane_mux {_names((select, a, b))}"
        case lir.LoadPlane(table=table, index=index):
            return f"load_plane {_at(table, index)}"
        case lir.FoldTree():
            where = f"nodes {_at(op.indices, op.offset)}, table @{op.table.name}"
            return f"fold_tree depth {op.depth} level {op.level} {where}"
        case lir.PlanesToIndex(planes=planes):
            return f"planes_to_index {_names(planes)}"
        case lir.Lookup(table=table, base=base, index=index):
            return f"lookup @{table.name}[%{base.name} + %{index.name}]"
        case lir.WarpReduce(a=a, width=width):
            return f"warp_reduce %{a.name}, width {width}"
        case _:
            assert_never(op)


# ---------------------------------------------------------------- statements


def _body(body: Sequence[Stmt]) -> Iterator[str]:
    for stmt in body:
        yield from _stmt(stmt)


def _block(body: Sequence[Stmt], yields: Sequence[Value] = ()) -> Iterator[str]:
    for line in _body(body):
        yield "  " + line
    if yields:
        yield f"  yield {_names(yields)}"


def _results(results: Sequence[Value]) -> str:
    return ", ".join(map(_bound, results)) + " = " if results else ""


def _carry(params: Sequence[Value], inits: Sequence[Value]) -> str:
    pairs = zip(params, inits, strict=False)
    text = ", ".join(f"{_bound(p)} = %{i.name}" for p, i in pairs)
    return f" carry ({text})" if text else ""


def _dims(dims: Sequence[tuple[lir.GpuDim, Value, Value]]) -> str:
    return ", ".join(f"{dim} {_bound(var)} < %{count.name}" for dim, var, count in dims)


def _stmt(stmt: Stmt) -> Iterator[str]:
    match stmt:
        case lir.Let(value=value, op=op):
            yield f"{_bound(value)} = {_op(op)}"
        case lir.Store(buffer=buffer, index=index, value=value):
            yield f"store {_at(buffer, index)} = %{value.name}"
        case lir.Scatter(buffer=buffer, index=index, value=value, mask=mask):
            where = f" where %{mask.name}" if mask else ""
            yield f"scatter {_at(buffer, index)} = %{value.name}{where}"
        case lir.AtomicAdd(buffer=buffer, index=index, value=value):
            yield f"atomic_add {_at(buffer, index)} += %{value.name}"
        case lir.Prefetch(buffer=buffer, index=index):
            yield f"prefetch {_at(buffer, index)}"
        case lir.StorePlane(table=table, index=index, value=value):
            yield f"store_plane {_at(table, index)} = %{value.name}"
        case lir.TransposeBlock():
            rows = f"rows %{stmt.first.name} + {stmt.rows} of %{stmt.n_rows.name}"
            features = f"features @{stmt.features.name}[0 to %{stmt.n_features.name}]"
            source = f"@{stmt.source.name} stride %{stmt.stride.name}"
            yield f"transpose_block @{stmt.target.name} = {source}, {rows}, {features}"
        case lir.UnpermuteStore():
            where = _at(stmt.target, stmt.index)
            count = f"%{stmt.n_valid.name} of {stmt.rows} rows"
            yield f"unpermute_store {where} = @{stmt.source.name}, {count}"
        case lir.Alloc(buffer=buffer, size=size):
            yield f"alloc {_declared(buffer)} size %{size.name}"
        case lir.For():
            bounds = f"%{stmt.lo.name} to %{stmt.hi.name} step %{stmt.step.name}"
            carry = _carry(stmt.params, stmt.inits)
            head = f"for {_bound(stmt.var)} = {bounds}{carry}"
            yield f"{_results(stmt.results)}{head} {{"
            yield from _block(stmt.body, stmt.yields)
            yield "}"
        case lir.While():
            carry = _carry(stmt.params, stmt.inits)
            yield f"{_results(stmt.results)}while{carry} {{"
            yield from _block(stmt.before)
            yield f"}} %{stmt.cond.name} {{"
            yield from _block(stmt.body, stmt.yields)
            yield "}"
        case lir.If():
            yield f"{_results(stmt.results)}if %{stmt.cond.name} {{"
            yield from _block(stmt.then, stmt.then_yields)
            if stmt.orelse or stmt.else_yields:
                yield "} else {"
                yield from _block(stmt.orelse, stmt.else_yields)
            yield "}"
        case lir.Switch():
            yield f"{_results(stmt.results)}switch %{stmt.selector.name} {{"
            last = len(stmt.cases) - 1
            for number, case in enumerate(stmt.cases):
                label = f"{number}" if number < last else "else"
                yields = stmt.yields[number] if number < len(stmt.yields) else ()
                yield f"{label}:"
                yield from _block(case, yields)
            yield "}"
        case lir.ParallelFor(var=var, count=count, body=body):
            yield f"parallel_for {_bound(var)} < %{count.name} {{"
            yield from _block(body)
            yield "}"
        case lir.Grid(dims=dims, body=body):
            yield f"grid {_dims(dims)} {{"
            yield from _block(body)
            yield "}"
        case lir.BlockRegion(dims=dims, body=body):
            yield f"block_region {_dims(dims)} {{"
            yield from _block(body)
            yield "}"
        case _:
            assert_never(stmt)
