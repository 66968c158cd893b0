"""The LLVM text of an exported library: constants, dispatch, and its C functions.

::

    int name_predict_f32(model, rows, n, row_stride, column_stride, out):
      for part of rows:                                       # all at once if possible
        rows = convert(part)           # other dtype, missing marker or column stride
        run(model.variant, rows, sums)                    # kernel of the batch's range
        finish(sums, out)                                 # averages, transform, labels

This code gains nothing from newer CPUs, so it is compiled for the baseline; kernels
have attributes with their own CPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._version import __version__
from skforge.compiler.outputs.steps import Steps
from skforge.compiler.outputs.text import llvm_number
from skforge.compiler.runtime.entry.results import LLVM_TYPES, ResultWriter, loop
from skforge.exporters.contents import ERRORS, ExportedKernel, Library, Ranges
from skforge.exporters.llvm_model import MOVE, finish_text, model_text, variant_text

#: Padding bytes after constants, because kernels' vector loads may read past the end.
PADDING = 64

GIVEN = {"f32": "float32", "f64": "float64"}
_OUT_TYPES = {**LLVM_TYPES, "int32": "i32"}


def data_bytes(library: Library) -> int:
    """Return the bytes of all constants, counting equal ones once."""
    return sum(len(one) for one in _Constants(library).bytes.values())


def library_text(library: Library) -> str:
    """Return the LLVM module that is linked with the kernels."""
    constants = _Constants(library)
    whole = library.variants[0].whole
    finish = finish_text(library)
    parts = [
        _DECLARATIONS,
        *((MOVE, finish) if finish else ()),
        *constants.text(),
        variant_text(library.name, [v.target for v in library.variants]),
        model_text(library.name, library.scratch),
        _run(library, constants),
        *(_finish(library, name, steps) for name, steps in library.outputs.items()),
        *(_convert(library, given) for given in GIVEN),
        *(
            _predict(library, given, name, steps)
            for name, steps in library.outputs.items()
            for given in GIVEN
        ),
        *(_predict(library, given, name) for name in whole for given in GIVEN),
        _facts(library),
    ]
    return "\n\n".join(parts) + "\n"


def kernel_text(text: str, cpu: str, features: str) -> str:
    """Return a kernel's module with hidden symbols and its own CPU's attributes."""
    attributes = f'"target-cpu"="{cpu}" "target-features"="{features}"'
    text = re.sub(
        r"^(define [^\n]*) nounwind( noinline)? \{$",
        rf"\1 nounwind\2 {attributes} {{",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(r"^define void ", "define hidden void ", text, flags=re.MULTILINE)


_DECLARATIONS = """
declare noalias ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare float @expf(float)
declare double @exp(double)
declare double @log1p(double)
declare float @llvm.fabs.f32(float)"""


class _Constants:
    """The constant arrays of all kernels; equal arrays are stored once."""

    def __init__(self, library: Library) -> None:
        self.name = library.name
        self.bytes: dict[str, bytes] = {}
        for variant in library.variants:
            for kernel in variant.kernels:
                for array in kernel.data:
                    self.symbol(array)

    def symbol(self, array: NDArray[Any]) -> str:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        payload = little.tobytes()
        symbol = f"@{self.name}.data.{sha256(payload).hexdigest()[:16]}"
        self.bytes.setdefault(symbol, payload)
        return symbol

    def text(self) -> list[str]:
        return [
            f"{symbol} = internal constant <{{ [{len(payload)} x i8], "
            f"[{PADDING} x i8] }}> <{{ [{len(payload)} x i8] {_bytes(payload)}, "
            f"[{PADDING} x i8] zeroinitializer }}>, align 64"
            for symbol, payload in self.bytes.items()
        ]


# ------------------------------------------------------------ dispatch

_HEAD = "(ptr %model, ptr %scratch, ptr %rows, i64 %n, i64 %stride, ptr %sums)"


def _run(library: Library, constants: _Constants) -> str:
    """Return the functions that select a batch's kernel and call it."""
    name, parts = library.name, []
    for v, variant in enumerate(library.variants):
        functions = {"": variant.ranges, **variant.whole}
        for function, ranges in functions.items():
            item = _result_bytes(library, function)
            for k in sorted({k for _, k in ranges}):
                symbol, kernel = f"{name}.call.{v}.{k}", variant.kernels[k]
                parts.append(_call(library, symbol, kernel, constants, item))
            parts.append(
                _by_rows(f"{name}.run.{function}{v}", f"{name}.call.{v}", ranges)
            )
    for function in ("", *library.variants[0].whole):
        calls = [f"{name}.run.{function}{v}" for v in range(len(library.variants))]
        parts.append(_choose(f"{name}.run.{function}".rstrip("."), calls))
    return "\n\n".join(parts)


def _result_bytes(library: Library, function: str) -> int:
    """Return the bytes of a row that a function's kernels write."""
    forest = library.forest
    item = forest.accumulator_dtype.itemsize
    match function:
        case "apply":
            return 4 * forest.n_trees
        case "predict_contribs":
            return item * library.contribs * (forest.n_features + 1)
        case _:
            return item * forest.n_outputs


def _by_rows(symbol: str, call: str, ranges: Ranges) -> str:
    """Return the function that calls the kernel of the batch's range."""
    lines = [f"define internal void @{symbol}{_HEAD} nounwind {{"]
    lines.append("  br label %range0")
    last = len(ranges) - 1
    for at, (upper, k) in enumerate(ranges):
        lines.append(f"range{at}:")
        if at < last:
            lines += [
                f"  %in{at} = icmp sle i64 %n, {upper}",
                f"  br i1 %in{at}, label %here{at}, label %range{at + 1}",
                f"here{at}:",
            ]
        lines += [f"  call void @{call}.{k}{_HEAD}", "  ret void"]
    return "\n".join([*lines, "}"])


def _choose(symbol: str, functions: list[str]) -> str:
    """Return the function that calls the function of the model's variant."""
    table = " ".join(f"i32 {v}, label %v{v}" for v in range(1, len(functions)))
    lines = [
        f"define internal void @{symbol}{_HEAD} nounwind {{",
        "  %variant = load atomic i32, ptr %model monotonic, align 4",
        f"  switch i32 %variant, label %v0 [ {table} ]",
    ]
    for v, function in enumerate(functions):
        lines += [f"v{v}:", f"  call void @{function}{_HEAD}", "  ret void"]
    return "\n".join([*lines, "}"])


def _call(
    library: Library,
    symbol: str,
    kernel: ExportedKernel,
    constants: _Constants,
    result_bytes: int,
) -> str:
    """Return the function that fills a kernel's slots and calls it, part by part."""
    scratch = library.scratch
    fixed = [constants.symbol(array) for array in kernel.data]
    pieces = []
    at = scratch.rows + scratch.sums
    for k, size in enumerate(kernel.scratch):
        pieces.append(f"  %piece{k} = getelementptr i8, ptr %scratch, i64 {at}")
        at += size
    names = ["%rows.at", "%part", "%stride", "%sums.at", *fixed]
    names += [f"%piece{k}" for k in range(len(pieces))]
    slots, stores = f"[{len(names)} x i64]", []
    for k, value in enumerate(names):
        type_ = "i64" if k in (1, 2) else "ptr"
        stores += [
            f"  %slot{k} = getelementptr {slots}, ptr %slots, i64 0, i64 {k}",
            f"  store {type_} {value}, ptr %slot{k}",
        ]
    most = kernel.most_rows or 1 << 62
    item = library.forest.input_dtype.itemsize
    lines = "\n".join
    return f"""declare hidden void @{kernel.symbol}(ptr, ptr, i64)

define internal void @{symbol}{_HEAD} nounwind {{
start:
  %slots = alloca {slots}, align 16
  %row.bytes = mul i64 %stride, {item}
{lines(pieces)}
  br label %part.start
part.start:
  %i = phi i64 [ 0, %start ], [ %i.next, %part.start ]
  %left = sub i64 %n, %i
  %few = icmp slt i64 %left, {most}
  %part = select i1 %few, i64 %left, i64 {most}
  %rows.off = mul i64 %i, %row.bytes
  %sums.off = mul i64 %i, {result_bytes}
  %rows.at = getelementptr i8, ptr %rows, i64 %rows.off
  %sums.at = getelementptr i8, ptr %sums, i64 %sums.off
{lines(stores)}
  call void @{kernel.symbol}(ptr %slots, ptr null, i64 1)
  %i.next = add i64 %i, %part
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %part.start, label %end
end:
  ret void
}}"""


# ------------------------------------------------------------ rows and results


def _finish(library: Library, name: str, steps: Steps) -> str:
    """Return the function from sums to results, as in compiled entries."""
    writer = ResultWriter(steps, library.forest.n_outputs, library.sum_dtype)
    symbol = f"{library.name}.finish.{name}"
    whole = f"""{writer.labels()}

define internal void @{symbol}(ptr %sums, ptr %data, i64 %n) nounwind {{
entry:
  %count = mul i64 %n, {writer.n_outputs}
  br label %divide0
{writer.results()}
return:
  ret void
}}"""
    return whole.replace("@skf_", "@").replace("@labels", f"@{symbol}.labels")


def _convert(library: Library, given: str) -> str:
    """Return the function that copies rows densely in the forest's dtype, with NaN.

    The cast is that of C: round to nearest, and too large values become infinity.
    """
    theirs, mine = LLVM_TYPES[GIVEN[given]], LLVM_TYPES[library.row_dtype]
    cast = {"float": "fpext", "double": "fptrunc"}[theirs]
    lines, last = [f"  %y = {cast} {theirs} %x to {mine}"], "%y"
    if theirs == mine:
        lines, last = [], "%x"
    if not np.isnan(library.forest.missing_value):
        marker = llvm_number(library.forest.missing_value, library.row_dtype)
        nan = llvm_number(float("nan"), library.row_dtype)
        lines += [
            f"  %missing = fcmp oeq {mine} {last}, {marker}",
            f"  %z = select i1 %missing, {mine} {nan}, {mine} {last}",
        ]
        last = "%z"
    head = "(ptr %rows, i64 %n, i64 %stride, i64 %columns, ptr %to) nounwind {"
    n_features, carried = library.forest.n_features, ("x.at", "ptr", "%from")
    value = f"""  %x = load {theirs}, ptr %x.at
{chr(10).join(lines)}
  %y.at = getelementptr {mine}, ptr %to.row, i64 %i.value
  store {mine} {last}, ptr %y.at
  %x.at.n = getelementptr {theirs}, ptr %x.at, i64 %columns"""
    values = loop("value", n_features, value, "row.end", carried)
    row = f"""  %from.off = mul i64 %i.row, %stride
  %from = getelementptr {theirs}, ptr %rows, i64 %from.off
  %to.off = mul i64 %i.row, {n_features}
  %to.row = getelementptr {mine}, ptr %to, i64 %to.off
  br label %{"value" if n_features else "row.end"}
{values if n_features else ""}
row.end:"""
    return f"""define internal void @{library.name}.convert_{given}{head}
start:
  br label %row
{loop("row", "%n", row, "end")}
end:
  ret void
}}"""


def _predict(
    library: Library, given: str, output: str, steps: Steps | None = None
) -> str:
    """Return one of the library's public functions; without steps, a kernel's own."""
    name = library.name
    in_place, run, finish = True, f"{name}.run.{output}", ""
    dtype, columns = library.results[output]
    if steps is not None:
        in_place, run = steps.result == "values", f"{name}.run"
        sums = "%to" if in_place else "%sums.at"
        head = f"  call void @{name}.finish.{output}"
        finish = f"{head}(ptr {sums}, ptr %to, i64 %count)"
    elif output == "predict_contribs" and finish_text(library):
        finish = f"  call void @{name}.finish.{output}(ptr %to, ptr %to, i64 %count)"
    marked = not np.isnan(library.forest.missing_value)
    always = marked or GIVEN[given] != library.row_dtype
    theirs, out = LLVM_TYPES[GIVEN[given]], _OUT_TYPES[dtype]
    converts = "icmp ne i64 %columns, 1"
    if always:
        converts = "icmp eq i64 0, 0"
    return f"""define i32 @{name}_{output}_{given}\
(ptr %model, ptr %rows, i64 %n, i64 %stride, i64 %columns, ptr %out) nounwind {{
start:
  %no.model = icmp eq ptr %model, null
  %is.negative = icmp slt i64 %n, 0
  %is.empty = icmp eq i64 %n, 0
  %no.rows = icmp eq ptr %rows, null
  %no.out = icmp eq ptr %out, null
  %no.one = or i1 %no.rows, %no.out
  %converts = {converts}
  %in.parts = {"or i1 %converts, " + ("false" if in_place else "true")}
  %most = select i1 %in.parts, i64 {library.part_rows}, i64 {1 << 62}
  br i1 %no.model, label %null, label %opened
opened:
  br i1 %is.negative, label %negative, label %any
any:
  br i1 %is.empty, label %good, label %given
given:
  br i1 %no.one, label %null, label %room
room:
  %is.large = icmp sge i64 %n, {library.scratch_rows(output)}
  %takes = or i1 %in.parts, %is.large
  br i1 %takes, label %take, label %work
take:
  %taken = call ptr @{name}.acquire(ptr %model)
  %is.short = icmp eq ptr %taken, null
  br i1 %is.short, label %short, label %work
work:
  %scratch = phi ptr [ null, %room ], [ %taken, %take ]
  %sums.at = getelementptr i8, ptr %scratch, i64 {library.scratch.rows}
  br label %part
part:
  %i = phi i64 [ 0, %work ], [ %i.next, %run ]
  %left = sub i64 %n, %i
  %is.last = icmp slt i64 %left, %most
  %count = select i1 %is.last, i64 %left, i64 %most
  %from.off = mul i64 %i, %stride
  %from = getelementptr {theirs}, ptr %rows, i64 %from.off
  %to.off = mul i64 %i, {columns}
  %to = getelementptr {out}, ptr %out, i64 %to.off
  br i1 %converts, label %convert, label %run
convert:
  call void @{name}.convert_{given}\
(ptr %from, i64 %count, i64 %stride, i64 %columns, ptr %scratch)
  br label %run
run:
  %dense = phi ptr [ %from, %part ], [ %scratch, %convert ]
  %step = phi i64 [ %stride, %part ], [ {library.forest.n_features}, %convert ]
  call void @{run}(ptr %model, ptr %scratch, ptr %dense, i64 %count, \
i64 %step, ptr {"%to" if in_place else "%sums.at"})
{finish}
  %i.next = add i64 %i, %count
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %part, label %leave
leave:
  br i1 %takes, label %give, label %good
give:
  call void @{name}.give(ptr %scratch)
  br label %good
good:
  ret i32 0
null:
  ret i32 1
negative:
  ret i32 2
short:
  ret i32 4
}}"""


# ------------------------------------------------------------ facts


def _bytes(payload: bytes) -> str:
    """Return bytes as an LLVM string constant in hexadecimal."""
    if not payload:
        return "zeroinitializer"
    digits = np.frombuffer(payload.hex().upper().encode(), np.uint8).reshape(-1, 2)
    whole = np.empty((len(payload), 3), np.uint8)
    whole[:, 0] = ord("\\")
    whole[:, 1:] = digits
    return f'c"{whole.tobytes().decode()}"'


def _facts(library: Library) -> str:
    """Return the functions that take no rows, such as ``version``."""
    name = library.name
    texts: list[str] = []

    def text(symbol: str, value: str) -> str:
        payload = value.encode() + b"\0"
        texts.append(
            f"@{name}.text.{symbol} = internal constant [{len(payload)} x i8] "
            f"{_bytes(payload)}"
        )
        return f"@{name}.text.{symbol}"

    def table(symbol: str, values: Sequence[str]) -> str:
        items = [
            f"ptr {text(f'{symbol}.{k}', value)}" for k, value in enumerate(values)
        ]
        # a table of pointers needs relocations; a switch stays in read-only pages
        lines = [
            f"define ptr @{name}_{symbol}(i32 %k) nounwind {{",
            f"  switch i32 %k, label %k{len(values)} [ "
            + " ".join(f"i32 {k}, label %k{k}" for k in range(len(values)))
            + " ]",
        ]
        for k, item in enumerate(items):
            lines += [f"k{k}:", f"  ret {item}"]
        unknown = text(f"{symbol}.other", "unknown")
        lines += [f"k{len(values)}:", f"  ret ptr {unknown}", "}"]
        return "\n".join(lines)

    functions = [
        f"""define ptr @{name}_{symbol}() nounwind {{
  ret ptr {text(symbol, value)}
}}"""
        for symbol, value in (
            ("version", __version__),
            ("checksum", library.forest.content_hash()),
        )
    ]
    functions += [
        table("error", list(ERRORS.values())),
        table("variant_name", [v.target.cpu for v in library.variants]),
    ]
    return "\n\n".join([*texts, *functions])
