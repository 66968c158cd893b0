"""The LLVM text that puts a library's contributions where they belong.

Kernels write all outputs of a row but the one that follows from the others, dense::

    finish(to, n):
      for row n - 1 down to 0:                       # in place: rows only move up
        to[row, outputs - 1 values] = what the kernel wrote for the row
        to[row, last] = -(the sum of the others), and its bias
"""

from __future__ import annotations

from skforge.compiler.forest.means import Means
from skforge.compiler.outputs.text import llvm_number
from skforge.compiler.runtime.entry.results import LLVM_TYPES, loop
from skforge.exporters.contents import Library

MOVE = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"


def finish_text(library: Library) -> str:
    """Return ``NAME.finish.predict_contribs``, empty if kernels write all outputs."""
    forest, written = library.forest, library.contribs
    if written in (0, forest.n_outputs):
        return ""
    width, type_ = forest.n_features + 1, LLVM_TYPES[library.sum_dtype]
    item = forest.accumulator_dtype.itemsize
    bias = llvm_number(float(Means.of(forest).bias[written]), library.sum_dtype)
    add = f"""  %at.off = mul i64 %i.output, {width}
  %at = add i64 %at.off, %i.value
  %x.at = getelementptr {type_}, ptr %to.row, i64 %at
  %x = load {type_}, ptr %x.at
  %sum.n = fadd {type_} %sum, %x"""
    value = f"""  br label %output
{loop("output", written, add, "value.end", ("sum", type_, "-0.0"))}
value.end:
  %negative = fneg {type_} %sum.n
  %value.at = getelementptr {type_}, ptr %last, i64 %i.value
  store {type_} %negative, ptr %value.at"""
    row = f"""  %left = sub i64 %n, %i.row
  %place = sub i64 %left, 1
  %from.off = mul i64 %place, {written * width * item}
  %to.off = mul i64 %place, {(written + 1) * width * item}
  %from.row = getelementptr i8, ptr %to, i64 %from.off
  %to.row = getelementptr i8, ptr %to, i64 %to.off
  %last = getelementptr {type_}, ptr %to.row, i64 {written * width}
  call void @llvm.memmove.p0.p0.i64(ptr %to.row, ptr %from.row, \
i64 {written * width * item}, i1 false)
  br label %value
{loop("value", width, value, "row.end")}
row.end:
  %bias.at = getelementptr {type_}, ptr %last, i64 {width - 1}
  store {type_} {bias}, ptr %bias.at"""
    return f"""define internal void @{library.name}.finish.predict_contribs\
(ptr %sums, ptr %to, i64 %n) nounwind {{
start:
  br label %row
{loop("row", "%n", row, "end")}
end:
  ret void
}}"""
