"""Scratch pools of a kernel, kept between calls to avoid page faults.

The C library often unmaps a block of 100 KB when it is freed, and the next call faults
it in again: 10 to 20 us, where a batch of 64 rows takes 5. So each function of a kernel
keeps up to ``KEPT`` blocks, taken and returned by one atomic operation each; further
threads allocate. ``release`` frees all blocks when the code is unloaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.codegen.llvm.types import quoted

#: Blocks kept for each function; further concurrent threads allocate their own.
KEPT = 4

RELEASE = ".release"


def pool_function(kernel: str, verb: str, pool: int) -> str:
    """Return the symbol of a pool's function."""
    return f"@{quoted(f'{kernel}.{verb}{pool}')}"


def pool_text(kernel: str, sizes: Sequence[int]) -> list[str]:
    """Return the text of every pool and of the function that empties them."""
    if not sizes:
        return []
    parts = []
    release = [f"define void @{quoted(kernel + RELEASE)}() nounwind {{"]
    for pool, size in enumerate(sizes):
        slots = pool_function(kernel, "slots", pool)
        take = pool_function(kernel, "take", pool)
        give = pool_function(kernel, "give", pool)
        parts.append(f"{slots} = internal global [{KEPT} x ptr] zeroinitializer")
        parts.append("\n".join(_take(take, slots, size)))
        parts.append("\n".join(_give(give, slots)))
        for k in range(KEPT):
            name = f"%p{pool}.{k}"
            release.append(f"  {name}.at = {_slot(slots, k)}")
            release.append(f"  {name} = atomicrmw xchg ptr {name}.at, ptr null seq_cst")
            release.append(f"  call void @free(ptr {name})")
    return [*parts, "\n".join([*release, "  ret void", "}"])]


def _slot(slots: str, k: int) -> str:
    return f"getelementptr inbounds [{KEPT} x ptr], ptr {slots}, i64 0, i64 {k}"


def _take(symbol: str, slots: str, size: int) -> list[str]:
    """Return a function that takes a kept block or allocates a new one."""
    lines = [f"define internal ptr {symbol}() nounwind noinline {{", "start:"]
    for k in range(KEPT):
        lines += [
            f"  %at{k} = {_slot(slots, k)}",
            f"  %p{k} = atomicrmw xchg ptr %at{k}, ptr null acquire",
            f"  %some{k} = icmp ne ptr %p{k}, null",
            f"  br i1 %some{k}, label %found{k}, label %next{k}",
            f"found{k}:",
            f"  ret ptr %p{k}",
            f"next{k}:",
        ]
    return [
        *lines,
        f"  %new = call ptr @aligned_alloc(i64 64, i64 {-(-size // 64) * 64})",
        "  ret ptr %new",
        "}",
    ]


def _give(symbol: str, slots: str) -> list[str]:
    """Return a function that keeps a block in an empty slot, or frees it."""
    head = f"define internal void {symbol}(ptr %block) nounwind noinline {{"
    lines = [head, "start:"]
    for k in range(KEPT):
        lines += [
            f"  %at{k} = {_slot(slots, k)}",
            f"  %r{k} = cmpxchg ptr %at{k}, ptr null, ptr %block release monotonic",
            f"  %kept{k} = extractvalue {{ ptr, i1 }} %r{k}, 1",
            f"  br i1 %kept{k}, label %done, label %next{k}",
            f"next{k}:",
        ]
    return [
        *lines,
        "  call void @free(ptr %block)",
        "  br label %done",
        "done:",
        "  ret void",
        "}",
    ]
