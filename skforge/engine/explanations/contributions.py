"""Contributions of features to raw scores (SHAP values) of a compiled forest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from skforge._typing import Array
from skforge.compiler.backend import backend_of
from skforge.compiler.target import Target
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.engine.entry import entry as entries
from skforge.engine.kernels import AnyKernel, KernelCache, RangeKernels
from skforge.engine.rows import forest_rows
from skforge.engine.schedules import check_count
from skforge.exceptions import InvalidInputError, UnsupportedModelError, check_choice
from skforge.forest import means
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES
from skforge.forest.reference import reference_raw
from skforge.outputs.steps import Refused, Steps
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.ir.mir.nodes import Element
    from skforge.engine.explanations.background import (
        BackgroundKernel,
        BackgroundValues,
    )

#: Most rows that a compiled entry explains; more take so long that calls cost nothing.
ENTRY_ROWS = 64

#: Bytes of scratch for the sums of a block's vector leaves; more outputs are computed
#: one group after another.
SUM_BYTES = 32 << 20


class ContributionKernels:
    """The kernels of a forest's contributions, each compiled on first use.

    ``forest`` has all its outputs; ``schedule`` is by batch size, or None: defaults.
    """

    def __init__(
        self,
        forest: Forest,
        target: Target,
        schedule: dict[BatchRange, Schedule] | None = None,
    ) -> None:
        from skforge.compiler.defaults.cpu import contribution_schedules

        forest = means.explained(forest)
        host = target if target.kind == "cpu" else Target.host()
        self.forest, self._target, self._host = forest, target, host
        self._changes: tuple[Array, Any, AnyKernel] | None = None
        self._parts = parts = parts_of(forest)
        self._caches = of_target = [KernelCache(part, host, "exact") for part in parts]
        if host != target:  # path-dependent values; the other ones come from the CPU
            of_target = [KernelCache(part, target, "exact") for part in parts]
        #: What compares rows with background rows, by part.
        self._backgrounds: list[BackgroundValues] | None = None
        table = schedule
        if table is None:
            table = backend_of(target).contribution_table(forest)
        paired = contribution_schedules(forest, "interactions")
        self._kernels: dict[Element, list[RangeKernels]] = {
            "contribution": [RangeKernels(table, c, "contribution") for c in of_target],
            "interaction": [
                RangeKernels(paired, c, "interaction") for c in self._caches
            ],
        }
        for chosen in schedule.values() if schedule else ():
            # Bind now, so that a wrong schedule raises here and not on the first call.
            of_target[0].bind(chosen, "contribution")

    def inspect(self, level: str, n_rows: int | None, method: str) -> str:
        elements: dict[str, Element] = {
            "contributions": "contribution",
            "interactions": "interaction",
        }
        check_choice("method", method, ("predict", *elements))
        element = elements[method]
        check_covers(self.forest)
        kernels = self._kernels[element][0]
        schedule = kernels.ranges[-1 if n_rows is None else kernels.number(n_rows)][1]
        return kernels.cache.text(schedule, element, level)

    def compile_all(self, batch_sizes: Any = None) -> None:
        check_covers(self.forest)
        for kernels in self._kernels["contribution"]:
            sizes = kernels.first_rows if batch_sizes is None else batch_sizes
            for size in np.ravel(sizes) if self.forest.n_predicates else ():
                kernels.scores(int(size)).load()

    def interactions(self, rows: Array, threads: int) -> Array:
        """Return SHAP interaction values (Lundberg et al. 2018, section 4).

        They have the shape (n_rows, n_outputs, n_features + 1, n_features + 1).
        """
        return self._filled("interaction", rows, threads, axes=2)

    def approximate(self, rows: Array, threads: int) -> Array:
        forest = self.forest
        check_covers(forest)
        if self._changes is None:
            of_nodes = means.Means.of(forest)
            numbers = np.arange(forest.n_nodes, dtype=np.int32)
            numbered = replace(forest, source_node=numbers)
            leaves = KernelCache(numbered, self._host, "exact")
            schedule = self._kernels["contribution"][0].ranges[0][1]
            kernel = leaves.kernel(schedule, "leaf_number")
            self._changes = of_nodes.bias, means.changes(forest, of_nodes), kernel
        bias, table, kernel = self._changes
        reached = np.empty((len(rows), forest.n_trees), np.int32)
        if reached.size:
            kernel(rows, reached, threads)
        return means.approximate(forest, bias, table, reached)

    def values(self, rows: Array, threads: int) -> Array:
        """Return the SHAP values of rows, (n_rows, n_outputs, n_features + 1).

        They are path-dependent: a feature that is not known follows the training rows,
        as counted by the covers of the nodes (Lundberg et al. 2018, Algorithm 2). The
        bias comes last.
        """
        return self._filled("contribution", rows, threads, axes=1)

    def entry(self, refused: Refused, limit: float) -> Any:
        """Return a compiled entry of path-dependent values, None if there is none.

        It explains batches of sizes that :meth:`values` has explained before, on one
        thread; see :meth:`CompiledModule.entry`.
        """
        forest = self.forest
        known = self._parts == [forest] and forest.n_outputs == 1
        kernels = self._kernels["contribution"][0]
        if not known or self._host != self._target or not entries.supports(forest):
            return None
        kind = entries.kind_of(forest, Steps(), refused, limit)
        kind = replace(kind, n_outputs=forest.n_features + 1)
        sizes = entries.sizes_of(
            forest, forest.n_features, kernels.first_rows, ENTRY_ROWS
        )
        sizes = sizes._replace(gil_rows=max(1, entries.GIL_WORK // forest.n_nodes))
        return entries.build_entry(kind, sizes, kernels.table, self._host)

    def _filled(self, element: Element, rows: Array, threads: int, axes: int) -> Array:
        forest, n = self.forest, len(rows)
        check_covers(forest)
        kernels = (of_part.scores(n) for of_part in self._kernels[element])
        contribs, bias, n_biased = self._by_parts(kernels, rows, threads, axes)
        if n and n_biased < forest.n_outputs:
            bias[:, n_biased:] = means.Means.of(forest).bias[n_biased:]
        return contribs

    def against(self, background: Array, rows: Array, threads: int) -> Array:
        """Return interventional SHAP values, (n_rows, n_outputs, n_features + 1).

        They are averaged over the background rows, and the bias, which comes last, is
        the mean score of these (Lundberg et al. 2020, Algorithm 3).
        """
        forest = self.forest
        check_sums(forest)
        if not len(background):
            raise InvalidInputError(
                "background has no rows; pass at least one, such as a sample of the "
                "training rows."
            )
        if self._backgrounds is None:
            from skforge.engine.explanations.background import (
                BackgroundValues,
            )

            self._backgrounds = [BackgroundValues(k, self._host) for k in self._caches]
        made = (x.answer(background, len(rows), threads) for x in self._backgrounds)
        contribs, bias, n_biased = self._by_parts(made, rows, threads, axes=1)
        if not forest.n_predicates:
            bias[:] = reference_raw(forest, background[:1])
        elif n_biased < forest.n_outputs:
            bias[:, n_biased] += forest.n_trees / forest.divisor
        return contribs

    def interactions_against(
        self, background: Array, rows: Array, threads: int
    ) -> Array:
        from skforge.compiler.layouts.background import interactions

        values = self.against(background, rows, threads)
        width = values.shape[-1]
        result = np.zeros((*values.shape, width), values.dtype)
        pairs = interactions.interactions(self.forest, background, rows)
        result[..., :-1, :-1] = pairs
        every = np.arange(width - 1)
        result[..., every, every] = values[..., :-1] - pairs.sum(axis=-1)
        result[..., -1, -1] = values[..., -1]
        return result

    def _by_parts(
        self,
        kernels: Iterable[BackgroundKernel | AnyKernel],
        rows: Array,
        threads: int,
        axes: int,
    ) -> tuple[Array, Array, int]:
        """Return what the kernels of all parts give for rows, and a view of the bias.

        ``axes`` are those of features.
        The number is that of the outputs whose bias is in it; where there is a last one
        without a kernel, it is minus the others. Without tests, all are 0.
        """
        forest, n, output = self.forest, len(rows), 0
        inner = (forest.n_features + 1,) * axes
        contribs = np.zeros((n, forest.n_outputs, *inner), forest.accumulator_dtype)
        bias = contribs.reshape(n, forest.n_outputs, math.prod(inner))[..., -1]
        if not n or not forest.n_predicates:
            return contribs, bias, 0
        for part, kernel in zip(self._parts, kernels, strict=True):
            if part is forest:
                kernel(rows, contribs.reshape(n, -1), threads)
                return contribs, bias, forest.n_outputs
            some = np.empty((n, part.n_outputs, *inner), contribs.dtype)
            kernel(rows, some.reshape(n, -1), threads)
            contribs[:, output : output + part.n_outputs] = some
            output += part.n_outputs
        if output < forest.n_outputs:
            contribs[:, output] = -contribs[:, :output].sum(axis=1)
        return contribs, bias, output


def parts_of(forest: Forest) -> list[Forest]:
    """Return forests for some of the outputs each, without those that follow.

    Scratch has a sum for each output of a vector leaf and feature. Where the two values
    of every leaf sum to one, as probabilities do, the second output is minus the first.
    (Of more, a rare class would have the errors of the others.)
    """
    n = forest.n_outputs
    if not forest.vector_leaves:
        return [forest]
    total = forest.leaf_value.astype(np.float64).sum(axis=1)
    eps = np.finfo(forest.leaf_value.dtype).eps
    are_shares = np.abs(total - 1).max(initial=0) <= n * eps
    if n == 2 and len(forest.cover) and are_shares and not forest.base.any():
        n -= 1
    most = max(1, SUM_BYTES // (8 * 64 * max(1, forest.n_features)))
    if n == forest.n_outputs and n <= most:
        return [forest]
    return [_outputs(forest, low, min(n, low + most)) for low in range(0, n, most)]


def _outputs(forest: Forest, first: int, last: int) -> Forest:
    values = forest.leaf_value[:, first:last]
    output = 0 if last - first == 1 else -1
    return replace(
        forest,
        leaf_value=values,
        base=forest.base[first:last],
        tree_output=np.full(forest.n_trees, output, np.int32),
        output_sizes=(),
        outputs=SCORES,
    )


def check_sums(forest: Forest) -> None:
    if forest.aggregate != "sum":
        raise UnsupportedModelError(
            "the model takes the {} of its trees, but contributions are defined only "
            "for sums.".format(forest.aggregate.replace("linear", "linear models"))
        )
    if forest.scaling:
        raise UnsupportedModelError(
            f"the model multiplies its sums by {forest.scaling[0]!r}, which "
            "contributions do not support; compute them in CatBoost."
        )


def check_covers(forest: Forest) -> None:
    check_sums(forest)
    if forest.n_nodes and not len(forest.cover):
        raise UnsupportedModelError(
            f"this {forest.source} model does not store how many training rows "
            "reached each node; pass background rows, because contributions then need "
            "no such counts."
        )


# ------------------------------------------------------------ a compiled module


class Explained:
    """Explains the scores of a forest; a base of ``Engine``."""

    forest: Forest
    target: Target
    n_jobs: int | None
    contribs_schedule: dict[BatchRange, Schedule] | None
    _contributions: dict[Target, ContributionKernels]

    def _contribs(
        self,
        rows: Array,
        n_jobs: int | None = None,
        *,
        interactions: bool = False,
        approximate: bool = False,
        background: Array | None = None,
    ) -> Array:
        n_jobs = self.n_jobs if n_jobs is None else n_jobs
        threads = 1 if n_jobs is None else resolve_n_jobs(n_jobs)
        _refuse_combined(interactions, approximate, background is not None)
        if self.forest.row_norms:
            raise UnsupportedModelError(
                "contributions of columns are not defined for a graph that divides "
                "rows by a norm (Normalizer): each column changes all quotients."
            )
        if interactions and self.forest.n_columns < self.forest.n_features:
            raise UnsupportedModelError(
                "interactions of columns are not defined for a model whose trees test "
                "combinations of categories; use predict_contribs without "
                "interactions=True."
            )
        explained = self._explained(by_host=not self.explains(len(rows), threads))
        if background is not None:
            background = forest_rows(self.forest, background)
            against = (
                explained.interactions_against if interactions else explained.against
            )
            contribs = against(background, rows, threads)
        elif interactions:
            contribs = explained.interactions(rows, threads)
        elif approximate:
            contribs = explained.approximate(rows, threads)
        else:
            contribs = explained.values(rows, threads)
        contribs = self.forest.of_columns(contribs)
        return contribs[:, 0] if self.forest.n_outputs == 1 else contribs

    def entry_of_few(self, n_rows: int) -> Any:
        """Return an entry for contributions, if calls are for so few rows."""
        single = self.n_jobs is None or resolve_n_jobs(self.n_jobs) == 1
        if not single or n_rows > ENTRY_ROWS:
            return None
        return self.contribs_entry("nothing", math.inf, not self.explains(n_rows, 1))

    def contribs_entry(
        self, refused: Refused, limit: float, by_host: bool = False
    ) -> Any:
        """Return a compiled function of arrays, None if there is none.

        It answers as :meth:`predict_contribs` without options does, for a model of one
        output, or returns None; see :meth:`CompiledModule.entry`.
        """
        if self.forest.is_encoded:  # the code explains features, not columns
            return None
        return self._explained(by_host=by_host).entry(refused, limit)

    def explains(self, n_rows: int, threads: int) -> bool:
        """Tell whether the target explains so many rows sooner than the CPU."""
        given = self.contribs_schedule is not None
        least = backend_of(self.target).least_explained(self.forest, self.target)
        return given or n_rows >= least * threads

    def _explained(self, by_host: bool = False) -> ContributionKernels:
        target = Target.host() if by_host else self.target
        if target not in self._contributions:
            made = ContributionKernels(self.forest, target, self.contribs_schedule)
            self._contributions[target] = made
        return self._contributions[target]

    def warm_up_contribs(self, batch_sizes: ArrayLike | None = None) -> None:
        """Compile what :meth:`predict_contribs` without options needs."""
        for size in () if batch_sizes is None else np.ravel(batch_sizes):
            check_count(size)
        for explained in {
            self._explained(),
            self._explained(by_host=not self.explains(0, 1)),
        }:
            explained.compile_all(batch_sizes)


def _refuse_combined(interactions: bool, approximate: bool, background: bool) -> None:
    options = {
        "interactions=True": interactions,
        "approximate=True": approximate,
        "background rows": background,
    }
    names = [name for name, is_set in options.items() if is_set]
    if len(names) > 1 and (approximate or len(names) > 2):
        raise InvalidInputError(
            f"{' and '.join(names)} cannot be combined; leave out all but one."
        )
