"""LLVM text that creates, uses and frees the opaque handle of an exported library.

A handle is one block of memory with the number of the variant and one slot of scratch
per thread. A prediction acquires a slot with an atomic exchange and releases it. If
all slots are taken, the call allocates its own block. So calls never wait for each
other and only share read-only data; a thread that dies in a call loses its slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.forest.means import Means
from skforge.compiler.outputs.text import llvm_number
from skforge.compiler.runtime.entry.results import LLVM_TYPES, loop
from skforge.compiler.target import Target
from skforge.exporters.contents import LINE, Library, Scratch

#: The bit of each feature, by its LLVM name, in the words of ``cpuid``. Kernels use no
#: other features.
_BITS = {
    "one.c": {
        "sse3": 0, "ssse3": 9, "fma": 12, "cx16": 13, "sse4.1": 19, "sse4.2": 20,
        "movbe": 22, "popcnt": 23, "xsave": 26, "avx": 28, "f16c": 29,
    },
    "seven.b": {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19,
        "avx512ifma": 21, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31,
    },
    "seven.c": {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10,
        "avx512vnni": 11, "avx512bitalg": 12, "avx512vpopcntdq": 14,
    },
    "subleaf.a": {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    "extended.c": {"sahf": 0, "lzcnt": 5, "sse4a": 6},
}  # fmt: skip
#: Register state (XCR0 bits) that the system must save for 256- and 512-bit vectors.
_SAVED = {"avx": 0x06, "avx512f": 0xE6}

_ASK = """\
  %r{k} = call {{ i32, i32, i32, i32 }} asm sideeffect "cpuid", \
"={{ax}},={{bx}},={{cx}},={{dx}},0,2,~{{dirflag}},~{{fpsr}},~{{flags}}"\
(i32 {leaf}, i32 {subleaf})"""


def variant_text(name: str, variants: Sequence[Target]) -> str:
    """Return the internal functions that choose a variant.

    ``NAME.runs`` returns whether this CPU can run a variant. ``NAME.best`` returns the
    number of the first variant that it can run, or -1. Variants are ordered best first.
    """
    count = len(variants)
    if variants[0].arch == "x86_64":
        runs = _x86_text(name, variants)
    else:  # aarch64 always has NEON
        runs = f"""
define internal i1 @{name}.runs(i32 %variant) nounwind {{
  %known = icmp ult i32 %variant, {count}
  ret i1 %known
}}"""
    tries = []
    for k in range(count):
        tries += [
            f"try{k}:",
            f"  %runs{k} = call i1 @{name}.runs(i32 {k})",
            f"  br i1 %runs{k}, label %found{k}, label %try{k + 1}",
            f"found{k}:",
            f"  ret i32 {k}",
        ]
    return f"""{runs}

define internal i32 @{name}.best() nounwind {{
  br label %try0
{chr(10).join(tries)}
try{count}:
  ret i32 -1
}}
"""


def _x86_text(name: str, variants: Sequence[Target]) -> str:
    asks = [
        _ASK.format(k=k, leaf=leaf, subleaf=subleaf)
        for k, (leaf, subleaf) in enumerate(
            ((0, 0), (1, 0), (7, 0), (7, 1), (-(1 << 31) + 1, 0))
        )
    ]
    found = (  # word, question, register
        ("one.c", 1, 2),
        ("seven.b", 2, 1),
        ("seven.c", 2, 2),
        ("subleaf.a", 3, 0),
        ("extended.c", 4, 2),
    )
    values = [
        f"  %all.{word} = extractvalue {{ i32, i32, i32, i32 }} %r{ask}, {at}\n"
        f"  %{word} = select i1 %has.seven, i32 %all.{word}, i32 0"
        if word.startswith(("seven", "subleaf"))
        else f"  %{word} = extractvalue {{ i32, i32, i32, i32 }} %r{ask}, {at}"
        for word, ask, at in found
    ]
    cases = []
    for k, variant in enumerate(variants):
        cases.append(f"case{k}:")
        last = "true"
        for n, (word, mask) in enumerate(_masks(variant).items()):
            cases += [
                f"  %m{k}.{n} = and i32 %{word}, {mask}",
                f"  %e{k}.{n} = icmp eq i32 %m{k}.{n}, {mask}",
                f"  %a{k}.{n} = and i1 {last}, %e{k}.{n}",
            ]
            last = f"%a{k}.{n}"
        cases.append(f"  ret i1 {last}")
    table = " ".join(f"i32 {k}, label %case{k}" for k in range(len(variants)))
    lines = "\n".join
    return f"""
define internal i1 @{name}.runs(i32 %variant) nounwind {{
start:
{lines(asks)}
  %most = extractvalue {{ i32, i32, i32, i32 }} %r0, 0
  %has.seven = icmp uge i32 %most, 7
{lines(values)}
  %os = and i32 %one.c, {1 << 27}
  %is.os = icmp ne i32 %os, 0
  br i1 %is.os, label %ask, label %decide
ask:
  %x = call {{ i32, i32 }} asm sideeffect "xgetbv", \
"={{ax}},={{dx}},{{cx}},~{{dirflag}},~{{fpsr}},~{{flags}}"(i32 0)
  %x.a = extractvalue {{ i32, i32 }} %x, 0
  br label %decide
decide:
  %saved = phi i32 [ 0, %start ], [ %x.a, %ask ]
  switch i32 %variant, label %none [ {table} ]
{lines(cases)}
none:
  ret i1 false
}}"""


def _masks(variant: Target) -> dict[str, int]:
    """Return the bits that must be set in each word."""
    enabled = set(variant.enabled)
    masks = {
        word: sum(1 << bits[feature] for feature in enabled & bits.keys())
        for word, bits in _BITS.items()
    }
    saved = enabled & _SAVED.keys()
    masks["saved"] = max((_SAVED[feature] for feature in saved), default=0)
    return {word: mask for word, mask in masks.items() if mask}


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
