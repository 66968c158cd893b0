"""Interventional contributions (SHAP values) of a compiled forest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.defaults.background import background_schedule
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.layouts.background.background import game_of
from skforge.compiler.layouts.background.given import background_tables
from skforge.compiler.runtime.kernels import Kernel, KernelCache
from skforge.exceptions import InvalidInputError

Array = NDArray[Any]


class BackgroundValues:
    """The kernels that compare rows with background rows; those of the last are kept.

    Parameters
    ----------
    forest : Forest
        The forest, with all its outputs.
    parts : list of (Forest, KernelCache)
        Forests for some of the outputs each. If they have all but the last one, the
        values of every leaf sum to one.
    """

    def __init__(self, forest: Forest, parts: list[tuple[Forest, KernelCache]]) -> None:
        self.forest, self._parts = forest, parts
        self._last: tuple[Array, list[Kernel]] | None = None

    def __call__(self, rows: Array, background: Array, threads: int) -> Array:
        """Return interventional SHAP values, (n_rows, n_outputs, n_features + 1).

        They are averaged over the background rows, and the bias, which comes last, is
        the mean score of these (Lundberg et al. 2020, Algorithm 3).
        """
        forest = self.forest
        if not len(background):
            raise InvalidInputError(
                "background has no rows; pass at least one, such as a sample of the "
                "training rows."
            )
        n, width = len(rows), forest.n_features + 1
        made = np.zeros((n, forest.n_outputs, width), forest.accumulator_dtype)
        if not forest.n_predicates:
            made[..., -1] = reference_raw(forest, background[:1])
        if not n or not forest.n_predicates:
            return made
        parts = [part for part, _ in self._parts]
        at = fill(made, parts, self._kernels(background), rows, threads)
        if at < forest.n_outputs:
            made[:, at, -1] += forest.n_trees / forest.divisor
        return made

    def _kernels(self, background: Array) -> list[Kernel]:
        """Return a kernel for each part that reads these background rows."""
        last = self._last
        if last is None or not _same_bits(last[0], background):
            made = [_kernel(kernels, background) for _, kernels in self._parts]
            # A copy, because users may change their own rows.
            last = self._last = np.array(background, order="C"), made
        return last[1]


def fill(
    contribs: Array, parts: list[Forest], kernels: list[Any], rows: Array, threads: int
) -> int:
    """Fill in the parts' outputs and return their number; a last one is minus these."""
    at = 0
    for part, kernel in zip(parts, kernels, strict=True):
        shape = len(rows), part.n_outputs, *contribs.shape[2:]
        some = np.empty(shape, contribs.dtype)
        kernel(rows, some.reshape(len(rows), -1), threads)
        contribs[:, at : at + part.n_outputs] = some
        at += part.n_outputs
    if at < contribs.shape[1]:
        contribs[:, at] = -contribs[:, :at].sum(axis=1)
    return at


def _kernel(kernels: KernelCache, background: Array) -> Kernel:
    """Return the kernel for background rows: the same code with tables of its own."""
    schedule = background_schedule()
    kernel = kernels.kernel(schedule, "contribution")
    assert isinstance(kernel, Kernel)
    game = game_of(kernels.bind(schedule, "contribution"))
    return kernel.with_data(background_tables(game, background))


def _same_bits(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    word = f"u{a.itemsize}"
    return bool((a.view(word) == np.ascontiguousarray(b).view(word)).all())
