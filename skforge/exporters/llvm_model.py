"""LLVM text that creates, uses and frees the opaque handle of an exported library.

A handle is one block of memory with the number of the variant and one slot of scratch
per thread. A prediction acquires a slot with an atomic exchange and releases it. If
all slots are taken, the call allocates its own block. So calls never wait for each
other and only share read-only data; a thread that dies in a call loses its slot.
"""

from __future__ import annotations

from skforge.compiler.forest.means import Means
from skforge.compiler.outputs.text import llvm_number
from skforge.compiler.runtime.entry.results import LLVM_TYPES, loop
from skforge.exporters.contents import LINE, Library, Scratch

#: States of a slot.
_FREE, _TAKEN, _ALLOCATED = 0, 1, 2


def model_text(name: str, scratch: Scratch) -> str:
    """Return the functions of a library's handles.

    ``NAME.acquire`` and ``NAME.give`` are internal: the first returns a slot's scratch,
    or null if memory cannot be allocated.
    """
    slot = LINE + scratch.bytes
    slots = slot if scratch.bytes else 0
    return f"""
define i32 @{name}_open(i32 %threads, ptr %to) nounwind {{
start:
  %no.to = icmp eq ptr %to, null
  br i1 %no.to, label %null, label %given
given:
  store ptr null, ptr %to
  %is.negative = icmp slt i32 %threads, 0
  br i1 %is.negative, label %negative, label %ask
ask:
  %variant = call i32 @{name}.best()
  %is.old = icmp slt i32 %variant, 0
  br i1 %is.old, label %old, label %take
take:
  %many = zext i32 %threads to i64
  %slots = mul i64 %many, {slots}
  %size = add i64 %slots, {LINE}
  %model = call ptr @aligned_alloc(i64 {LINE}, i64 %size)
  %is.short = icmp eq ptr %model, null
  br i1 %is.short, label %short, label %fill
fill:
  call void @llvm.memset.p0.i64(ptr align {LINE} %model, i8 0, i64 %size, i1 false)
  store i32 %variant, ptr %model
  %count.at = getelementptr i32, ptr %model, i64 1
  store i32 %threads, ptr %count.at
  store ptr %model, ptr %to
  ret i32 0
null:
  ret i32 1
negative:
  ret i32 2
old:
  ret i32 3
short:
  ret i32 4
}}

define void @{name}_close(ptr %model) nounwind {{
  call void @free(ptr %model)
  ret void
}}

define i32 @{name}_variant(ptr %model) nounwind {{
start:
  %no.model = icmp eq ptr %model, null
  br i1 %no.model, label %null, label %given
given:
  %variant = load atomic i32, ptr %model monotonic, align 4
  ret i32 %variant
null:
  ret i32 -1
}}

define i32 @{name}_select(ptr %model, i32 %variant) nounwind {{
start:
  %no.model = icmp eq ptr %model, null
  br i1 %no.model, label %null, label %given
given:
  %runs = call i1 @{name}.runs(i32 %variant)
  br i1 %runs, label %yes, label %no
yes:
  store atomic i32 %variant, ptr %model monotonic, align 4
  ret i32 0
null:
  ret i32 1
no:
  ret i32 3
}}

define internal ptr @{name}.acquire(ptr %model) nounwind noinline {{
start:
  %here = alloca i64, align 8
  %count.at = getelementptr i32, ptr %model, i64 1
  %count.32 = load i32, ptr %count.at
  %count = zext i32 %count.32 to i64
  %none = icmp eq i64 %count, 0
  br i1 %none, label %allocate, label %choose
choose:
  ; threads have stacks of their own: each begins its search elsewhere
  %stack = ptrtoint ptr %here to i64
  %page = lshr i64 %stack, 14
  %mixed = mul i64 %page, -7046029254386353131
  %high = lshr i64 %mixed, 33
  %first = urem i64 %high, %count
  br label %look
look:
  %tried = phi i64 [ 0, %choose ], [ %tried.next, %next ]
  %at = phi i64 [ %first, %choose ], [ %at.next, %next ]
  %offset = mul i64 %at, {slot}
  %from.head = add i64 %offset, {LINE}
  %slot = getelementptr i8, ptr %model, i64 %from.head
  %seen = load atomic i32, ptr %slot monotonic, align 4
  %seems.free = icmp eq i32 %seen, {_FREE}
  br i1 %seems.free, label %try, label %next
try:
  %was = atomicrmw xchg ptr %slot, i32 {_TAKEN} acquire
  %is.free = icmp eq i32 %was, {_FREE}
  br i1 %is.free, label %found, label %next
next:
  %at.after = add i64 %at, 1
  %is.end = icmp eq i64 %at.after, %count
  %at.next = select i1 %is.end, i64 0, i64 %at.after
  %tried.next = add i64 %tried, 1
  %more = icmp ult i64 %tried.next, %count
  br i1 %more, label %look, label %allocate
allocate:
  %new = call ptr @aligned_alloc(i64 {LINE}, i64 {slot})
  %is.short = icmp eq ptr %new, null
  br i1 %is.short, label %short, label %made
made:
  ; rows that pad a block are computed like others: tools find nothing undefined
  call void @llvm.memset.p0.i64(ptr align {LINE} %new, i8 0, i64 {slot}, i1 false)
  store i32 {_ALLOCATED}, ptr %new
  br label %found
found:
  %taken = phi ptr [ %slot, %try ], [ %new, %made ]
  %scratch = getelementptr i8, ptr %taken, i64 {LINE}
  ret ptr %scratch
short:
  ret ptr null
}}

define internal void @{name}.give(ptr %scratch) nounwind noinline {{
start:
  %slot = getelementptr i8, ptr %scratch, i64 -{LINE}
  %state = load atomic i32, ptr %slot monotonic, align 4
  %is.own = icmp eq i32 %state, {_ALLOCATED}
  br i1 %is.own, label %free, label %leave
free:
  call void @free(ptr %slot)
  ret void
leave:
  store atomic i32 {_FREE}, ptr %slot release, align 4
  ret void
}}"""


# ------------------------------------------------------------ contributions

# Kernels write all outputs of a row but the one that follows from the others, dense:
#
#     finish(to, n):
#       for row n - 1 down to 0:                       # in place: rows only move up
#         to[row, outputs - 1 values] = what the kernel wrote for the row
#         to[row, last] = -(the sum of the others), and its bias

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
