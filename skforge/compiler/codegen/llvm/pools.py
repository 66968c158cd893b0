"""Scratch pools of a kernel, kept between calls to avoid page faults.

The C library often unmaps a block of 100 KB when it is freed, and the next call faults
it in again: 10 to 20 us, where a batch of 64 rows takes 5. So each function of a kernel
keeps up to ``KEPT`` blocks, taken and returned by one atomic operation each. A thread
looks for the block that it gave back: another's lies in the cache of another core.
``release`` frees all blocks when the code is unloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from string import Template

from skforge.compiler.codegen.llvm.writer import quoted
from skforge.runtime.loading import RELEASE

#: Blocks kept for each function, a power of two; further threads allocate their own.
KEPT = 64


def pool_function(kernel: str, verb: str, pool: int) -> str:
    return f"@{quoted(f'{kernel}.{verb}{pool}')}"


def pool_text(kernel: str, sizes: Sequence[int]) -> list[str]:
    if not sizes:
        return []
    home, parts = _texts()
    facts = {"kept": KEPT, "last": KEPT - 1, "shift": 65 - KEPT.bit_length()}
    texts, releases = [home.substitute(facts)], []
    for pool, size in enumerate(sizes):
        names = {
            verb: pool_function(kernel, verb, pool)
            for verb in ("slots", "take", "give", "empty")
        }
        whole = -(-size // 64) * 64
        texts += [part.substitute(facts, **names, size=whole) for part in parts]
        releases.append(f"  call void {names['empty']}()")
    head = f"define void @{quoted(kernel + RELEASE)}() nounwind {{"
    return [*texts, "\n".join([head, *releases, "  ret void", "}"])]


@lru_cache(maxsize=1)
def _texts() -> tuple[Template, list[Template]]:
    text = files("skforge.compiler.codegen.llvm").joinpath("pools.ll")
    lines = text.read_text("utf-8").splitlines()
    whole = "\n".join(line for line in lines if not line.startswith(";"))
    home, look, *parts = whole.split("\n\n")
    return Template(home), [Template(part.replace("${look}", look)) for part in parts]
