"""Kernels kept on disk with the arrays they read, so that nothing is lowered again.

A kernel's key is a digest of all that it is made from: the forest, the schedule, the
target, the reduction, and the sources of the compiler. A hit skips the lowering, the
encoding of the trees and the LLVM text; :mod:`~skforge.runtime.object_cache`
has the rules for the folder, damage and several writers. As a key cannot know of code
outside this package, kernels of others' directives or representations are not kept.

A random forest of 1.5 million nodes is loaded and answers its first row in .34 s with
its kernel stored, and in .94 s without (two cores of Emerald Rapids).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from skforge._compat import cached_property
from skforge._typing import Arrays
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.cpu.code import code_facts
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.runtime import code_version, object_cache, stored_kernels
from skforge.runtime.stored_kernels import StoredKernel

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.ir.mir.nodes import Element

#: The folder of the cache.
_SAMPLES = "samples"


class KernelStore:
    def __init__(self, forest: Forest, target: Target, reduction: Reduction) -> None:
        self._forest, self._target, self._reduction = forest, target, reduction

    def find(self, schedule: Schedule, element: Element) -> StoredKernel | None:
        if not self._keeps(schedule):
            return None
        return stored_kernels.find(self._key(schedule, element))

    def add(
        self, schedule: Schedule, element: Element, kernel: StoredKernel
    ) -> tuple[str, str] | None:
        if not self._keeps(schedule):
            return None
        return stored_kernels.add(self._key(schedule, element), kernel)

    def drawn(self, draw: Callable[[], Arrays], anew: bool) -> Arrays:
        """Return rows and scores, drawn once for all processes, or ``anew``."""
        if not code_version.keeps():
            return draw()
        key = object_cache.key_of(self._facts)
        stored = None if anew else stored_kernels.read(key, _SAMPLES)
        if stored is not None:
            return stored[1]
        stored_kernels.write(key, _SAMPLES, {}, arrays := draw())
        return arrays

    def _keeps(self, schedule: Schedule) -> bool:
        if self._target.kind != "cpu" or not code_version.keeps():
            return False
        if "skforge.compiler.layouts.base" not in sys.modules:  # to which others add
            return schedule.is_ours
        from skforge.compiler.layouts import base as representations

        names = (getattr(d, "representation", None) for d in schedule.directives)
        makers = [type(representations.get(name)) for name in names if name is not None]
        ours = all(maker.__module__.startswith("skforge.") for maker in makers)
        return ours and schedule.is_ours

    def _key(self, schedule: Schedule, element: Element) -> str:
        return object_cache.key_of((*self._facts, schedule.to_json(), element))

    @cached_property
    def _facts(self) -> tuple[str, ...]:
        forest, target = self._forest.content_hash(), self._target
        code = code_facts(target)
        width = str(target.vector_bits)  # cores and caches change the schedule alone
        return (code_version.sources(), *code, width, self._reduction, forest)
