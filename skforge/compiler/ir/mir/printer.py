"""Print MIR as text in the papers' notation, one statement per line.

Names of values carry a leading ``%``, loop variables do not::

    predict(rows) -> result[rows, outputs]:
      %model = ensemble(100 trees)
      par.for b0 in 0 to rows step 64:
        result[b0 : min(b0 + 64, rows)] = base
        for tree in 0 to 100:
          for b1 in 0 to min(64, rows - b0):
            %t = get_tree(%model, tree)
            %p = walk_decision_tree([%t], [rows[b0 + b1]]) <depth = 1..8>
            reduce(result[b0 + b1], %p) <"+", ordered>

Angle brackets after an operation hold its attributes; a loop's colon is followed by the
directives that passes have yet to carry out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from skforge.compiler.ir.mir import nodes as mir
from skforge.schedule.nest import BatchLength, Size, Times

_DRAWN_RUNS = 12  # of depth classes in a switch
_MODEL = "%model"  # the ensemble, of which a function has one

_FUNCTIONS: dict[mir.Element, str] = {
    "accumulator": "predict",
    "leaf_number": "apply",
    "contribution": "predict_contribs",
    "interaction": "predict_contribs",
    "pattern": "count_patterns",
}


def print_mir(function: mir.Function) -> str:
    head = f"{_FUNCTIONS[function.result.element]}(rows) -> {_array(function.result)}:"
    model = f"  {_MODEL} = ensemble({function.n_trees} trees)"
    return "\n".join([head, model, *_body(function.body, 1), ""])


def print_statement(stmt: mir.Stmt) -> str:
    return "\n".join(_statement(stmt, 0))


def loop_line(loop: mir.Loop) -> str:
    kind = {"serial": "", "parallel": "par.", "vector": "vector.", "block": "block."}
    text = f"{kind.get(loop.kind, loop.kind + '.')}for {loop.var} in "
    text += f"{size_text(loop.start)} to {_least(loop.bounds, mir.Affine())}"
    if loop.step != 1:
        text += f" step {size_text(loop.step)}"
    if loop.group > 1:
        text += f" groups of {loop.group}"
    marks = [mark.text(loop.root) for mark in loop.marks]
    return f"{text}:   {', '.join(marks)}" if marks else f"{text}:"


# ---------------------------------------------------------------- indices


def size_text(size: Size) -> str:
    return str(size).replace(str(BatchLength()), "rows")


def affine_text(index: mir.Affine) -> str:
    parts = list(index.terms)
    for size, times in index.sizes:
        text = size_text(size)
        parts.append(text if times == 1 else f"{text} * {times}")
    if not parts:
        return str(index.constant)
    text = " + ".join(parts)
    if index.constant:
        text += f" {'+' if index.constant > 0 else '-'} {abs(index.constant)}"
    return text


def index_text(index: mir.Index) -> str:
    match index:
        case mir.Affine():
            return affine_text(index)
        case mir.Slot(value=value, start=start, step=step):
            offset = affine_text(value)
            if start != 0:
                offset += f" - {size_text(start)}"
            if step == 1:
                return offset
            divisor = size_text(step)
            offset = f"({offset})" if " " in offset else offset
            divisor = f"({divisor})" if isinstance(step, Times) else divisor
            return f"{offset} / {divisor}"
        case mir.ModelTree(position=position):
            return f"model_tree({affine_text(position)})"
        case mir.Class(name=name):
            return name
        case mir.Outputs():
            return ":"


def _element(name: str, indices: Sequence[mir.Index]) -> str:
    return f"{name}[{', '.join(map(index_text, indices))}]"


def _least(bounds: Sequence[mir.Bound], start: mir.Affine) -> str:
    """Return ``start + min(limit - minus)`` as text, with equal terms cancelled."""
    texts = []
    for bound in bounds:
        added, subtracted = list(start.terms), []
        for name in bound.minus.terms:
            if name in added:
                added.remove(name)
            else:
                subtracted.append(name)
        sizes = [(s, n) for s, n in start.sizes if (s, n) not in bound.minus.sizes]
        less = [(s, n) for s, n in bound.minus.sizes if (s, n) not in start.sizes]
        constant = start.constant - bound.minus.constant
        limit = bound.limit
        if isinstance(limit, int):
            limit, constant = limit + constant, 0
        parts = [*added, *(affine_text(mir.multiple(s, n)) for s, n in sizes)]
        if limit != 0 or not parts:
            parts.append(size_text(limit))
        text = " + ".join(parts)
        subtracted += [affine_text(mir.multiple(s, n)) for s, n in less]
        for name in subtracted:
            text += f" - {name}"
        if constant:
            text += f" {'+' if constant > 0 else '-'} {abs(constant)}"
        texts.append(text)
    return texts[0] if len(texts) == 1 else f"min({', '.join(texts)})"


def _range(where: mir.Range, at: mir.Affine | None = None) -> str:
    start = where.start if at is None else at
    return f"{affine_text(start)} : {_least(where.bounds, start)}"


def _array(array: mir.NamedArray) -> str:
    dims = ("outputs" if dim is None else size_text(dim) for dim in array.dims)
    return f"{array.name}[{', '.join(dims)}]"


# ---------------------------------------------------------------- operations


def _list(items: Sequence[str]) -> str:
    return f"[{', '.join(items)}]"


def _rows(rows: Sequence[mir.Affine]) -> str:
    return _list([f"rows[{affine_text(row)}]" for row in rows])


def _attributes(words: Sequence[str]) -> str:
    return f" <{', '.join(words)}>" if words else ""


def _op(op: mir.Op) -> str:
    match op:
        case mir.GetTree(index=index):
            return f"get_tree({_MODEL}, {affine_text(index)})"
        case mir.GetTreeClassId(tree=tree):
            return f"get_tree_class_id({tree})"
        case mir.WalkDecisionTree():
            return _walk(op)
        case mir.GetRoot(trees=trees):
            return f"get_root({_list(trees)})"
        case mir.TraverseTreeTile():
            return _hop(op)
        case mir.GetLeafValue(trees=trees, nodes=nodes, element=element):
            what = "value" if element == "accumulator" else "number"
            return f"get_leaf_{what}({_list(trees)}, {_list(nodes)})"


def _walk(walk: mir.WalkDecisionTree) -> str:
    words = [f"depth = {walk.min_depth}..{walk.max_depth}"]
    if walk.unroll:
        words.append(f"unroll_depth = {walk.unroll}")
    if walk.peel:
        words.append(f"peel_depth = {walk.peel}")
    if walk.element != "accumulator":
        words.append(walk.element)
    args = f"{_list(walk.trees)}, {_rows(walk.rows)}"
    if walk.using is not None:
        args += f", using {walk.using}"
    return f"walk_decision_tree({args}){_attributes(words)}"


def _hop(hop: mir.TraverseTreeTile) -> str:
    args = f"{_list(hop.trees)}, {_list(hop.nodes)}, {_rows(hop.rows)}"
    if hop.using is not None:
        args += f", using {hop.using}"
    return f"traverse_tree_tile({args}){' <checked>' if hop.checked else ''}"


# ---------------------------------------------------------------- statements


def _body(body: mir.Body, depth: int) -> Iterator[str]:
    for stmt in body:
        yield from _statement(stmt, depth)


def _statement(stmt: mir.Stmt, depth: int) -> Iterator[str]:
    indent = "  " * depth
    match stmt:
        case mir.Loop():
            yield indent + loop_line(stmt)
            yield from _body(stmt.body, depth + 1)
            if stmt.remainder:
                yield f"{indent}remainder:"
                yield from _body(stmt.remainder, depth + 1)
        case mir.DepthSwitch():
            position = affine_text(stmt.position)
            yield f"{indent}switch depth_class({position}):   {_runs(stmt.class_of)}"
            for k, ((low, high), case) in enumerate(
                zip(stmt.classes, stmt.cases, strict=True)
            ):
                yield f"{indent}  case {k} <depth = {low}..{high}>:"
                yield from _body(case, depth + 2)
        case mir.WalkLoop():
            names = ", ".join(stmt.results)
            leaf = f"is_leaf({_list(stmt.step.trees)}, {_list(stmt.step.nodes)})"
            yield f"{indent}{names} = while any not {leaf} from {_list(stmt.inits)}:"
            yield f"{indent}  {', '.join(stmt.step.nodes)} = {_hop(stmt.step)}"
        case _:
            yield indent + _simple(stmt)


def _simple(stmt: mir.Simple) -> str:
    match stmt:
        case mir.Let(names=names, op=op):
            return f"{', '.join(names)} = {_op(op)}"
        case mir.Reduce():
            indices = stmt.indices
            if len(indices) > 1 and indices[-1] == mir.Affine():
                indices = indices[:-1]  # the only output
            words = ['"+"', stmt.order] + ["atomic"] * stmt.atomic
            element = _element(stmt.target, indices)
            return f"reduce({element}, {stmt.value}){_attributes(words)}"
        case mir.StoreLeaf(target=target, indices=indices, value=value):
            return f"{_element(target, indices)} = {value}"
        case mir.ReduceDimension():
            return _reduce_dimension(stmt)
        case mir.ReduceDimensionInplace():
            prefix = [index_text(index) for index in stmt.prefix]
            dims = [*prefix, f"0 : {size_text(stmt.extent)}", _range(stmt.rows)]
            return (
                f"reduce_dimension_inplace({stmt.array}{_list(dims)}, "
                f"{len(stmt.prefix)}){_reduction(stmt)}"
            )
        case mir.AllocArray(array=array, zero=zero):
            words = ["shared"] * array.shared + ["lanes"] * array.lanes
            if array.element != "accumulator":
                words.append(array.element)
            shape = _array(array).removeprefix(array.name)
            verb = "zeros" if zero else "alloc"
            return f"{array.name} = {verb}{shape}{_attributes(words)}"
        case mir.Fill(target=target, rows=rows):
            return f"{target}[{_range(rows)}] = base"
        case mir.Finish(source=source, rows=rows, source_rows=at):
            sums = f"{source}[{_range(rows, at)}]"
            return f"{mir.RESULT}[{_range(rows)}] = base + {sums} * scale"
        case mir.StoreRows(source=source, rows=rows):
            return f"{mir.RESULT}[{_range(rows)}] = {source}"
        case mir.CacheTrees(trees=trees):
            return f"cache_trees({_MODEL}, {_range(trees)})"
        case mir.CacheRows(rows=rows, share=share):
            part = [] if stmt.layout is None else [f"layout {stmt.layout}"]
            if share is not None:
                var, step, trips = share
                number = var if step == 1 else f"{var} / {step}"
                part.append(f"share {number} of {trips}")
            return f"cache_rows({_range(rows)}){_attributes(part)}"
        case mir.TakeRows(rows=rows):
            return f"take_rows({_range(rows)})"
        case mir.EvaluatePredicates(name=name, trees=trees, rows=rows):
            return f"{name} = evaluate_predicates({_range(trees)}, {_range(rows)})"
        case mir.QuantizeRows(name=name, rows=rows, size=size):
            return f"{name} = quantize_rows({_range(rows)}) <at most {size}>"


def _reduce_dimension(stmt: mir.ReduceDimension) -> str:
    slots = f"0 : {size_text(stmt.extent)}"
    if stmt.trees is not None:
        slots = f"trees {_range(stmt.trees)}"
    source = f"{slots}, {_range(stmt.rows, stmt.source_rows)}"
    how = _reduction(stmt)
    target = [*(index_text(index) for index in stmt.prefix), _range(stmt.rows)]
    return (
        f"{stmt.target}{_list(target)} += "
        f"reduce_dimension({stmt.source}[{source}], 0){how}"
    )


def _reduction(stmt: mir.ReduceDimension | mir.ReduceDimensionInplace) -> str:
    words = ['"+"']
    if isinstance(stmt, mir.ReduceDimension):
        words += [w for w in ("by_output", "by_warp", "atomic") if getattr(stmt, w)]
    if stmt.vector_width is not None:
        words.append(f"vector_width = {stmt.vector_width}")
    return _attributes(words)


def _runs(class_of: tuple[int, ...]) -> str:
    runs = [(k, len(list(same))) for k, same in groupby(class_of)]
    drawn = [f"{k} x {n}" for k, n in runs[:_DRAWN_RUNS]]
    if len(runs) > _DRAWN_RUNS:
        drawn.append(f"and {len(runs) - _DRAWN_RUNS} runs more")
    return ", ".join(drawn)
