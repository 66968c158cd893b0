"""Write a forest as portable C99, and the C header of any exported library.

The C is small and much slower than compiled kernels: it uses no vectors, batches or
scratch. Each row traverses a few trees at a time; sums follow the source library,
operation by operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import starmap
from textwrap import wrap
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.passes.lir.simplify import drop_dead
from skforge.compiler.target import Target
from skforge.engine.entry.results import ResultWriter
from skforge.exporters.contents import ERRORS, RETURNED, Library
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.categories import MULTIPLIER
from skforge.forest.forest import Forest
from skforge.gpu.codegen.emitter import CudaEmitter
from skforge.gpu.codegen.writer import Host, memory_text
from skforge.outputs.steps import Steps

#: The types of C, by dtype.
C_TYPES = {
    **{"float32": "float", "float64": "double", "bool": "int"},
    **{"int32": "int32_t", "int64": "int64_t"},
}
#: The type of rows in C, by the suffix of the functions that take them.
_ROWS = {"f32": "float", "f64": "double"}


def header_text(library: Library) -> str:
    name, results = library.name, library.results
    said = {k: f"{k}, a category:" for k in library.categories}
    features = library.forest.column_names or ()
    named = [f"{said.get(k, k)} {json.dumps(name)}" for k, name in enumerate(features)]
    named = named or [text[:-1] for text in said.values()]
    before = f", before {name}_encode" if said else ""
    columns = _comment([f"The columns of a row{before}:", *named]) if named else []
    if said:
        columns += library.filled("encoded.h").splitlines()
    columns += [
        f"#define {name.upper()}_{function.upper()}_COLUMNS {n}"
        for function, (_, n) in results.items()
    ]
    scratch = sum(library.scratch)
    opens = "open_scratch.h" if scratch else "open.h"
    last = len(ERRORS) - 1
    codes = [
        f"  {name.upper()}_{code} = {k}{',' * (k < last)} /* {text} */"
        for k, (code, text) in enumerate(ERRORS.items())
    ]
    functions = []
    if said:
        functions += library.filled("encode.h").splitlines()
    for column, values in library.texts.items():
        functions += ["", *_codes_say(library, column, values)]
    for function, (dtype, n) in results.items():
        out = C_TYPES[dtype]
        each = f"{n} {out}{'s' if n != 1 else ''} per row"
        told = "\n * ".join(wrap(f"{each}: {RETURNED[function]}.", 76))
        functions += ["", f"/* {told} */"]
        for suffix, c_type in _ROWS.items():
            given = {"function": function, "given": suffix, "c_type": c_type}
            functions.append(library.filled("declaration.h", out=out, **given).rstrip())
    return library.filled(
        "header.h",
        columns="\n".join(columns),
        codes="\n".join(codes),
        open=library.filled(opens, scratch=f"{scratch:,}").rstrip(),
        functions="\n".join(functions),
        variants="\n".join(f"/*   {k}: {cpu} */" for k, cpu in enumerate(library.cpus)),
    )


def _comment(lines: list[str]) -> list[str]:
    said = [line.replace("*/", "* /").replace("/*", "/ *") for line in lines]
    return ["/* " + said[0], *(" *   " + line for line in said[1:]), " */"]


def _codes_say(library: Library, column: int, codes: Mapping[str, Any]) -> list[str]:
    names = library.forest.feature_names
    name = "" if names is None else f" ({json.dumps(names[column])})"
    others = {
        "missing strings": codes["missing"],
        "Python's None": codes["none"],
        "other strings": codes["other"],
    }
    known = {json.dumps(text): code for text, code in codes["codes"].items()}
    lines = [
        f"Column {column}{name} takes codes for strings, see {library.name}.json:",
        *(
            f"{'refused by the pipeline:' if code is None else code} {what}"
            for what, code in (known | others).items()
        ),
    ]
    return _comment(lines)


def example_text(
    library: Library, build: str, tolerances: Mapping[str, tuple[float, float]]
) -> str:
    """Return a C program that predicts rows read as text from standard input.

    It also compares what functions return with what ``check.csv`` has; ``tolerances``
    are those of :func:`~skforge.exporters.check.tolerance`.
    """
    results, coded = library.results, {*library.categories}
    function = "predict" if "predict" in results else "predict_raw"
    dtype, columns = results[function]
    out = C_TYPES[dtype]
    form, cast = ("%lld", "(long long)") if out == "int64_t" else ("%.17g", "")
    if library.categories:
        how = {"given": "f32", "row": "encoded", "width": "N_COLUMNS", "cell": 1024}
        how |= {"skips": "1", "what": "numbers and texts", "first": "the"}
        how |= {"between": "commas", "reads": "read_texts.c"}
    else:
        how = {"given": "f64", "row": "row", "width": "N_FEATURES", "cell": 64}
        how |= {"skips": "(checks || n < 0)", "what": "numbers", "first": "a"}
        how |= {"between": "commas or blanks", "reads": "read_numbers.c"}
    flags = ", ".join(str(int(k in coded)) for k in range(library.forest.n_columns))
    how["width"] = f"{library.name.upper()}_{how['width']}"
    how["reads"] = library.filled(str(how["reads"]), flags=flags).rstrip()
    compared = ""
    for name, (limit, share) in tolerances.items():
        kind, width = results[name]
        facts = {"function": name, "out": C_TYPES[kind], "columns": width}
        facts |= {"limit": repr(limit), "share": repr(share)}
        compared += library.filled("compare.c", **facts, **how)
    return library.filled(
        "example.c",
        function=function,
        out=out,
        columns=columns,
        form=form,
        cast=cast,
        build=build,
        wanted=sum(results[name][1] for name in tolerances),
        compared=compared.rstrip(),
        **how,
    )


#: Trees traversed together; twice as fast as one after another.
_TOGETHER = 8


def source_text(library: Library) -> str:
    forest, results = library.forest, library.results
    leaves = "apply" in results
    marker = ""
    if not np.isnan(forest.missing_value):
        value = c_number(forest.missing_value, forest.input_dtype.name)
        marker = f"\n    if (x == {value}) x = NAN;"
    item = f"leaf[tree % {_TOGETHER}]"
    item = f"leaf_item[{item}]" if leaves else item
    kinds = np.unique(forest.comparison).tolist()
    categories = int(any(kind >= Comparison.IN for kind in kinds))
    # If all tests are of one kind, compilers remove the code of the others.
    kind = str(kinds[0]) if len(kinds) == 1 else "test_kind[test]"
    unused = set() if len(kinds) != 1 else {"test_kind"}
    unused |= set() if categories else {"set_begin", "set_word"}
    arrays = _tables(forest, leaves).items()
    tables = [_array(name, values) for name, values in arrays if name not in unused]
    finishes = "\n".join(
        _finish(library, function, steps) for function, steps in library.outputs.items()
    )
    functions = []
    for function, (dtype, columns) in results.items():
        body = "leaves.c" if function == "apply" else "results.c"
        facts = {"function": function, "columns": columns, "out": C_TYPES[dtype]}
        for suffix, c_type in _ROWS.items():
            given = facts | {"given": suffix, "c_type": c_type}
            text = library.filled(body, together=_TOGETHER, **given).rstrip()
            functions.append(library.filled("function.c", body=text, **given))
    how = {"marker": marker, "item": item, "together": _TOGETHER}
    how["columns"] = forest.leaf_value.shape[1]
    walks = [
        library.filled("walk.c", given=suffix, c_type=c_type, **how)
        for suffix, c_type in _ROWS.items()
    ]
    cases = "\n".join(
        f'    case {k}: return "{text}";' for k, text in enumerate(ERRORS.values())
    )
    return library.filled(
        "source.c",
        row=C_TYPES[library.row_dtype],
        total=C_TYPES[library.sum_dtype],
        zero=c_number(ZERO_THRESHOLD, library.row_dtype),
        zero_is_missing=int((forest.missing == Missing.ZERO).any()),
        kind=kind,
        categories=categories,
        above="> -1" if forest.truncate_categories else ">= 0",
        cpu=library.cpus[0],
        tables="\n".join(tables),
        walks="\n".join(walks),
        finishes=finishes,
        functions="\n".join([*functions, *_encoder(library)]),
        cases=cases,
    )


# ------------------------------------------------------------ tables


def _tables(forest: Forest, leaves: bool) -> dict[str, Array]:
    """Return the arrays by name, with inner nodes only.

    A child below 0 is ``~leaf``: a row of ``leaf_value``, or, with ``leaves``, the
    number of the leaf node.
    """
    inner = np.flatnonzero(forest.leaf < 0)
    place = np.full(forest.n_nodes, -1, np.int32)
    place[inner] = np.arange(len(inner))
    outer = np.flatnonzero(forest.leaf >= 0)
    item, tables = forest.leaf.copy(), {}
    if leaves:
        item[outer] = np.arange(len(outer))
        tables["leaf_item"] = forest.leaf[outer]
        tables["leaf_number"] = forest.source_node[outer]
    codes = np.where(item >= 0, ~item, place)
    following = np.stack([codes[forest.left], codes[forest.right]], axis=1)[inner]
    return tables | {
        "root": codes[forest.tree_offset[:-1]],
        "tree_output": forest.tree_output,
        "node_test": forest.predicate[inner],
        "node_next": following.reshape(-1),
        "test_feature": forest.feature,
        "test_kind": forest.comparison,
        "test_missing": forest.missing | (forest.missing_left.astype(np.uint8) << 2),
        "threshold": forest.threshold,
        "set_begin": forest.category_offset,
        "set_word": forest.category_words,
        "leaf_value": forest.leaf_value.reshape(-1),
        "base": forest.base,
    }


def c_number(value: float, dtype: str) -> str:
    exact = np.dtype(dtype).type(value)
    if np.isnan(exact):
        return "NAN"
    if np.isinf(exact):
        return "INFINITY" if exact > 0 else "-INFINITY"
    return float(exact).hex() + ("f" if dtype == "float32" else "")


def _array(name: str, values: Array) -> str:
    dtype = values.dtype.name
    if values.dtype.kind == "f":
        texts = [c_number(value, dtype) for value in values.tolist()]
    else:
        suffix = "u" if dtype in ("uint32", "uint64") else ""
        texts = [f"{value}{suffix}" for value in values.tolist()]
    texts = texts or ["0"]
    lines = [", ".join(texts[k : k + 8]) for k in range(0, len(texts), 8)]
    body, c_type = ",\n  ".join(lines), C_TYPES.get(dtype, f"{dtype}_t")
    return f"static const {c_type} {name}[{len(texts)}] = {{\n  {body}\n}};\n"


def _encoder(library: Library) -> list[str]:
    if (hashed := library.forest.hashed) is None:
        return []
    tables = hashed.arrays() | {
        "is_category": hashed.is_category.view(np.uint8),
        "part_value": hashed.part_value.view(np.uint32),
    }
    count = len(hashed.part_offset) - 1
    code = library.filled("encode.c", n_combinations=count, multiplier=MULTIPLIER)
    return [*starmap(_array, tables.items()), code]


# ------------------------------------------------------------ results


class _CEmitter(CudaEmitter):
    """Writes a routine's statements as C99, which has names in place of addresses."""

    def emit(self, stmt: lir.Stmt) -> None:
        match stmt:
            case lir.Let(value=value, op=lir.Symbol(name=name)):
                self.bind(value, (name,))
            case lir.View(buffer=buffer, address=address):
                self.line(f"const {self.start(buffer)} = {self.use(address)};")
            case lir.Window(buffer=buffer, base=base, index=index):
                at = f"{self.pointer(base)} + {self.use(index)}"
                self.line(f"{self.start(buffer)} = {at};")
            case lir.Call(symbol=symbol, args=args, results=(result,)):
                self.write(result, [f"{symbol}({', '.join(map(self.use, args))})"])
            case _:
                super().emit(stmt)

    def start(self, buffer: lir.Buffer) -> str:
        return f"{memory_text(buffer.element)} *{self.bind_buffer(buffer)}"


def _finish(library: Library, name: str, steps: Steps) -> str:
    """Return the function that makes a row's results of its sums."""
    labels, words = f"label_{name}", ", ".join(map(str, steps.labels))
    results = ResultWriter(steps, library.forest.n_outputs, library.sum_dtype, labels)
    sums, out = lir.Buffer("sums", results.sum), lir.Buffer("out", results.element)
    with Builder() as b:
        results.write(sums, out, b.const(1))
        if results.in_place:
            with b.loop(results.columns) as k:
                out[k] = sums[k]
    body = drop_dead(b.finish())  # compilers warn of what is not used
    function = lir.Routine(f"finish_{name}", (sums, out), body)
    text = _CEmitter(Host(function, Target.host()), lir.Grid((), ()))
    text.emit_body(body)
    table = f"static const int64_t {labels}[] = {{{words}}};\n" if words else ""
    head = f"static void {function.name}(SUM *sums, {memory_text(out.element)} *out)"
    return "\n".join([f"{table}{head} {{", *text.lines, "}\n"])
