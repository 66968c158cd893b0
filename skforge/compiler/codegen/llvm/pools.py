"""Scratch pools of a kernel, kept between calls to avoid page faults.

The C library often unmaps a block of 100 KB when it is freed, and the next call faults
it in again: 10 to 20 us, where a batch of 64 rows takes 5. So each function of a kernel
keeps up to ``KEPT`` blocks, taken and returned by one atomic operation each. A thread
looks for the block that it gave back: another's lies in the cache of another core.
``release`` frees all blocks when the code is unloaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from skforge.compiler.codegen.llvm.types import quoted

#: Blocks kept for each function, a power of two; further threads allocate their own.
KEPT = 64

RELEASE = ".release"


def pool_function(kernel: str, verb: str, pool: int) -> str:
    """Return the symbol of a pool's function."""
    return f"@{quoted(f'{kernel}.{verb}{pool}')}"


def pool_text(kernel: str, sizes: Sequence[int]) -> list[str]:
    """Return the text of every pool and of the function that empties them."""
    if not sizes:
        return []
    parts, releases = [_HOME], []
    for pool, size in enumerate(sizes):
        names = {
            verb: pool_function(kernel, verb, pool)
            for verb in ("slots", "take", "give", "empty")
        }
        size = -(-size // 64) * 64
        parts += [part.format(**names, size=size) for part in _PARTS]
        releases.append(f"  call void {names['empty']}()")
    head = f"define void @{quoted(kernel + RELEASE)}() nounwind {{"
    return [*parts, "\n".join([head, *releases, "  ret void", "}"])]


#: A hash of the thread: stacks lie a megabyte apart at least.
_HOME = f"""define internal i64 @"skforge.home"() nounwind {{
  %here = alloca i8
  %address = ptrtoint ptr %here to i64
  %stack = lshr i64 %address, 20
  %mixed = mul i64 %stack, -7046029254386353131
  %home = lshr i64 %mixed, {65 - KEPT.bit_length()}
  ret i64 %home
}}"""

#: Begins at the thread's own slot and goes through all of them.
_LOOK = f"""start:
  %home = call i64 @"skforge.home"()
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %next, %on ]
  %sum = add i64 %home, %k
  %slot = and i64 %sum, {KEPT - 1}
  %at = getelementptr inbounds [{KEPT} x ptr], ptr {{slots}}, i64 0, i64 %slot"""

#: Takes a kept block, first of all the thread's own, or allocates one.
_TAKE = f"""define internal ptr {{take}}() nounwind noinline {{{{
{_LOOK}
  %seen = load atomic ptr, ptr %at monotonic, align 8
  %some = icmp ne ptr %seen, null
  br i1 %some, label %take, label %on
take:
  %block = atomicrmw xchg ptr %at, ptr null acquire
  %taken = icmp ne ptr %block, null
  br i1 %taken, label %found, label %on
found:
  ret ptr %block
on:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {KEPT}
  br i1 %more, label %look, label %allocate
allocate:
  %new = call ptr @aligned_alloc(i64 64, i64 {{size}})
  ret ptr %new
}}}}"""

#: Keeps a block in the first empty slot from the thread's own on, or frees it.
_GIVE = f"""define internal void {{give}}(ptr %block) nounwind noinline {{{{
{_LOOK}
  %swap = cmpxchg ptr %at, ptr null, ptr %block release monotonic
  %kept = extractvalue {{{{ ptr, i1 }}}} %swap, 1
  br i1 %kept, label %done, label %on
on:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, {KEPT}
  br i1 %more, label %look, label %full
full:
  call void @free(ptr %block)
  br label %done
done:
  ret void
}}}}"""

#: Frees the kept blocks.
_EMPTY = f"""define internal void {{empty}}() nounwind noinline {{{{
start:
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %after, %next ]
  %at = getelementptr inbounds [{KEPT} x ptr], ptr {{slots}}, i64 0, i64 %k
  %block = atomicrmw xchg ptr %at, ptr null seq_cst
  call void @free(ptr %block)
  %after = add i64 %k, 1
  %more = icmp ult i64 %after, {KEPT}
  br i1 %more, label %next, label %done
done:
  ret void
}}}}"""

_SLOTS = f"{{slots}} = internal global [{KEPT} x ptr] zeroinitializer"

_PARTS = _SLOTS, _TAKE, _GIVE, _EMPTY
