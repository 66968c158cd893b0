"""LLVM text that selects the variants a CPU can run, with ``cpuid``.

The selection runs when a model is opened, because on virtual machines ``cpuid`` traps
to the hypervisor and takes longer than a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.target import Target

#: The bit of each feature, by its LLVM name, in the words of ``cpuid``. Kernels use no
#: other features.
_BITS = {
    "one.c": {
        "sse3": 0,
        "ssse3": 9,
        "fma": 12,
        "cx16": 13,
        "sse4.1": 19,
        "sse4.2": 20,
        "movbe": 22,
        "popcnt": 23,
        "xsave": 26,
        "avx": 28,
        "f16c": 29,
    },
    "seven.b": {
        "bmi": 3,
        "avx2": 5,
        "bmi2": 8,
        "avx512f": 16,
        "avx512dq": 17,
        "adx": 19,
        "avx512ifma": 21,
        "avx512cd": 28,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    "seven.c": {
        "avx512vbmi": 1,
        "avx512vbmi2": 6,
        "gfni": 8,
        "vaes": 9,
        "vpclmulqdq": 10,
        "avx512vnni": 11,
        "avx512bitalg": 12,
        "avx512vpopcntdq": 14,
    },
    "subleaf.a": {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    "extended.c": {"sahf": 0, "lzcnt": 5, "sse4a": 6},
}
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
