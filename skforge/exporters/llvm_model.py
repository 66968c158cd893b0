"""Code that creates, uses and frees the opaque handle of an exported library.

A handle is one block of memory with the number of the variant and one slot of scratch
per thread. A prediction acquires a slot with an atomic exchange and releases it. If
all slots are taken, the call allocates its own block. So calls never wait for each
other and only share read-only data; a thread that dies in a call loses its slot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import BOOL, I32, I64, U8, Buffer, Routine, Value
from skforge.compiler.ir.lir.types import BUILDER, scalar_of
from skforge.compiler.target import Target
from skforge.exporters.contents import ERRORS, LINE, Library, filled
from skforge.forest.means import Means

#: Questions to ``cpuid``: a leaf and its part. Each is answered by four words.
_QUESTIONS = (0, 0), (1, 0), (7, 0), (7, 1), (-(1 << 31) + 1, 0)
#: The bit of each feature, by its LLVM name, in a question's word. Kernels use no other
#: features.
_BITS: dict[tuple[int, int], dict[str, int]] = {
    (question, word): bits for question, word, bits in json.loads(filled("cpuid.json"))
}
#: Register state (XCR0 bits) that the system must save for 256- and 512-bit vectors.
_SAVED = {"avx": 0x06, "avx512f": 0xE6}

_MODEL, _VARIANT, _AT = Value("model", I64), Value("variant", I32), Value("at", I64)


def fail(cond: Value, error: Literal["", "NULL", "COUNT", "CPU", "MEMORY"]) -> None:
    b: Builder = BUILDER.get()
    code = [*ERRORS].index(f"ERROR_{error}") if error else 0
    with b.when(cond):
        b.give(b.const(code, I32))


def variant_code(name: str, variants: Sequence[Target]) -> list[str | Routine]:
    """Return the hidden functions that choose a variant.

    ``NAME.runs`` returns whether this CPU can run a variant. ``NAME.best`` returns the
    number of the first variant that it can run, or -1. Variants are ordered best first.
    """
    with Builder() as b:
        for k in range(len(variants)):
            number = b.const(k, I32)
            with b.when(b.call(f"{name}.runs", number, gives=BOOL)):
                b.give(number)
        b.give(b.const(-1, I32))
    best = Routine(f"{name}.best", (), b.finish(), I32, local=True)
    text = []
    with Builder() as b:
        if variants[0].arch == "x86_64":
            text.append(filled("cpuid.ll", name=name))
            _check_x86(b, name, variants)
        else:  # aarch64 always has NEON
            b.give((_VARIANT >= 0) & (len(variants) > _VARIANT))
    runs = Routine(f"{name}.runs", (_VARIANT,), b.finish(), BOOL, local=True)
    return [*text, best, runs]


def _check_x86(b: Builder, name: str, variants: Sequence[Target]) -> None:
    words = b.local("words", I32, 4 * len(_QUESTIONS))
    for k, question in enumerate(_QUESTIONS):
        leaf, part = (b.const(number, I32) for number in question)
        b.run(f"{name}.cpuid", leaf, part, b.address(words, 4 * k))
    has_seven, none, answers = words[0] > 6, b.const(0), {}
    for k, register in _BITS:
        word = words[4 * k + register].to(I64)
        answers[k, register] = b.select(has_seven, word, none) if k in (2, 3) else word
    saved = b.either(
        (answers[1, 2] & 1 << 27).ne(0), lambda: b.call(f"{name}.saved"), lambda: none
    )
    for k, variant in enumerate(variants):
        enabled = set(variant.enabled)
        state = max((_SAVED[feature] for feature in enabled & _SAVED.keys()), default=0)
        runs = _VARIANT.eq(k) & (saved & state).eq(state)
        for place, bits in _BITS.items():
            mask = sum(1 << bits[feature] for feature in enabled & bits.keys())
            runs = runs & (answers[place] & mask).eq(mask)
        with b.when(runs):
            b.give(b.const(True, BOOL))
    b.give(b.const(False, BOOL))


#: States of a slot.
_FREE, _TAKEN, _ALLOCATED = 0, 1, 2


def model_routines(name: str, scratch: int) -> list[Routine]:
    """Return the functions of a library's handles.

    ``NAME.acquire`` and ``NAME.give`` are hidden: the first returns a slot's scratch,
    or null if memory cannot be allocated.
    """
    slot = LINE + scratch
    with Builder() as b:
        b.run("free", _MODEL)
    return [
        _open(name, slot if scratch else 0),
        Routine(f"{name}_close", (_MODEL,), b.finish()),
        *_variant(name),
        _acquire(name, slot),
        _give(name),
    ]


def _open(name: str, slot: int) -> Routine:
    threads, to = Value("threads", I32), Buffer("to", I64)
    with Builder() as b:
        fail(b.address(to).eq(0), "NULL")
        to[0] = b.const(0)
        fail(threads < 0, "COUNT")
        variant = b.call(f"{name}.best", gives=I32)
        fail(variant < 0, "CPU")
        model = _cleared(b, threads.to(I64) * slot + LINE)
        fail(model.eq(0), "MEMORY")
        head = b.view("head", I32, model)
        head[0], head[1], to[0] = variant, threads, model
        b.give(b.const(0, I32))
    return Routine(f"{name}_open", (threads, to), b.finish(), I32)


def _cleared(b: Builder, size: Value) -> Value:
    block = b.call("aligned_alloc", b.const(LINE), size)
    with b.when(block.ne(0)):
        b.call("memset", block, b.const(0, I32), size)
    return block


def _variant(name: str) -> list[Routine]:
    with Builder() as b:
        with b.when(_MODEL.eq(0)):
            b.give(b.const(-1, I32))
        b.give(b.atomic("load", "monotonic", b.view("head", I32, _MODEL)))
    told = Routine(f"{name}_variant", (_MODEL,), b.finish(), I32)
    with Builder() as b:
        fail(_MODEL.eq(0), "NULL")
        fail(~b.call(f"{name}.runs", _VARIANT, gives=BOOL), "CPU")
        b.atomic("store", "monotonic", b.view("head", I32, _MODEL), _VARIANT)
        b.give(b.const(0, I32))
    return [told, Routine(f"{name}_select", (_MODEL, _VARIANT), b.finish(), I32)]


def _acquire(name: str, slot: int) -> Routine:
    with Builder() as b:
        count = b.view("head", I32, _MODEL)[1].to(I64)
        with b.when(count > 0):
            # Threads have stacks of their own: each begins its search elsewhere.
            page = b.address(b.local("here", I64)) >> 14
            mixed = page * -7046029254386353131 >> 33 & 0x7FFFFFFF
            at, slots = [mixed % count], b.view("slots", U8, _MODEL)
            with b.loop(count, carry=at):
                place = at[0] * slot + LINE
                state = b.view("state", I32, slots, place)
                free = b.atomic("load", "monotonic", state).eq(_FREE)
                with b.when(free):
                    was = b.atomic("swap", "acquire", state, b.const(_TAKEN, I32))
                    with b.when(was.eq(_FREE)):
                        b.give(_MODEL + place + LINE)
                after = at[0] + 1
                at[0] = b.select(after.eq(count), b.const(0), after)
        # Rows that pad a block are computed like others: nothing may be undefined.
        block = _cleared(b, b.const(slot))
        with b.when(block.eq(0)):
            b.give(block)
        b.view("state", I32, block)[0] = b.const(_ALLOCATED, I32)
        b.give(block + LINE)
    return Routine(f"{name}.acquire", (_MODEL,), b.finish(), I64, local=True)


def _give(name: str) -> Routine:
    with Builder() as b:
        place = _AT - LINE
        state = b.view("state", I32, place)
        with b.when(b.atomic("load", "monotonic", state).eq(_ALLOCATED)):
            b.run("free", place)
            b.give()
        b.atomic("store", "release", state, b.const(_FREE, I32))
    return Routine(f"{name}.give", (_AT,), b.finish(), local=True)


def finishes_contributions(library: Library) -> bool:
    return library.contribs not in (0, library.forest.n_outputs)


def contributions(library: Library) -> Routine:
    """Return ``NAME.finish.predict_contribs``.

    Kernels write all outputs of a row but the last one, dense::

        finish(to, n):
          for row n - 1 down to 0:                     # in place: rows only move up
            to[row, outputs - 1 values] = what the kernel wrote for the row
            to[row, last] = -(the sum of the others), and its bias
    """
    forest, written = library.forest, library.contribs
    width, type_ = forest.n_features + 1, scalar_of(np.dtype(library.sum_dtype))
    row_bytes, last = width * type_.bytes, written * width
    sums, to, n = (Value(hint, I64) for hint in ("sums", "to", "n"))
    with Builder() as b, b.loop(n) as i:
        place, size = n - i - 1, b.const(written * row_bytes)
        target = to + place * ((written + 1) * row_bytes)
        b.call("memmove", target, to + place * size, size)
        row = b.view("row", type_, target)
        with b.loop(width) as j:
            total = [b.const(-0.0, type_)]
            with b.loop(written, carry=total) as k:
                total[0] = total[0] + row[k * width + j]
            row[j + last] = -total[0]
        bias = float(Means.of(forest).bias[written])
        row[last + width - 1] = b.const(bias, type_)
    symbol = f"{library.name}.finish.predict_contribs"
    return Routine(symbol, (sums, to, n), b.finish(), local=True)
