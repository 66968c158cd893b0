"""Machine code of the trees of a graph that read what other trees answer."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from skforge._typing import Array
from skforge.compiler.target import Target
from skforge.engine.kernels import AnyKernel, KernelCache, KernelStore, raw_scores
from skforge.engine.rows import forest_rows
from skforge.exceptions import CompilerError
from skforge.forest.forest import Forest
from skforge.forest.leaves import leaf_finder
from skforge.forest.reference import reference_raw
from skforge.outputs import graph_members
from skforge.outputs.graph import runner_of
from skforge.schedule.schedule import Schedule


def install() -> None:
    """Let graphs walk trees with machine code from now on."""
    graph_members.SUMS["trees"] = _sums


def load(text: str | None) -> None:
    """Compile the trees of a graph's program, or read them from the cache."""
    for step in runner_of(text).program.steps:
        if step.operator == "Trees":
            forest, _ = graph_members.forest_of(step.attributes["forest"][0])
            _sums(forest, np.zeros((1, forest.n_features), forest.input_dtype))


@lru_cache(maxsize=64)
def _kernel(forest: Forest) -> AnyKernel | None:
    finder, target = leaf_finder(forest), Target.host()
    kernels = KernelCache(finder, target, "exact")
    kernels.store = KernelStore(finder, target, "exact")
    try:
        kernel = kernels.kernel(Schedule(), "accumulator")
        kernel.load()
    except CompilerError:  # NumPy needs no compiler
        return None
    return kernel


def _sums(forest: Forest, x: Array) -> Array:
    kernel = _kernel(forest)
    if kernel is None:
        return reference_raw(forest, x)
    raw = raw_scores(forest, kernel, forest_rows(forest, x))
    return raw.reshape(len(x), forest.n_outputs)
