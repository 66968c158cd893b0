"""The boosting rounds of a forest: which trees each has, and what a few predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array, Int64s
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.forest.outputs import OF_ONEDAL, AnswerSpec
from skforge.forest.validation import ABSENT
from skforge.runtime.libm import multiply_add


@dataclass(frozen=True)
class BoostingRounds:
    """A forest whose trees come in rounds, all with the same outputs."""

    forest: Forest
    n: int
    #: Trees of a round, and how many of them add to one output.
    width: int
    each: int

    @classmethod
    def of(cls, forest: Forest) -> BoostingRounds | None:
        """Return the rounds of a boosted forest, None of another."""
        each = forest.parallel_trees or 1
        if forest.source not in _BOOSTED or each < 0 or forest.aggregate in ABSENT:
            return None
        # averages, and isolation forests
        averages = "path_length", "shares", *OF_ONEDAL
        if forest.divisor != 1 or forest.outputs.function in averages:
            return None
        one = forest.vector_leaves or forest.outputs.function == "weighted_median"
        n_outputs = 1 if one else forest.n_outputs
        width = each * n_outputs
        n, odd = divmod(forest.n_trees - ends_in_bias(forest), width)
        if odd or n < 1:
            return None
        if not one:  # not those of several models in one
            outputs = np.tile(np.repeat(np.arange(n_outputs), each), n)
            if (forest.tree_output[: n * width] != outputs).any():
                return None
        return cls(forest, n, width, each)

    def trees(self, begin: int, end: int) -> Int64s:
        """Return the trees that add to the scores of rounds [begin, end)."""
        trees = np.arange(begin * self.width, end * self.width)
        if begin == 0 and ends_in_bias(self.forest):
            trees = np.append(trees, self.forest.n_trees - 1)
        return trees

    def steps(self, planes: Array, begin: int, step: int) -> Array:
        """Return what each step of CatBoost's rounds adds, in place of leaf values."""
        factor, *bias = self.forest.scaling or (1.0,)
        if ends_in_bias(self.forest):
            bias = self.forest.leaf_value[self.forest.leaf[-1]].tolist()
        firsts = range(0, planes.shape[1], step)
        for number, at in enumerate(firsts):
            sums = planes[:, at] + 0.0
            for tree in range(at + 1, min(at + step, planes.shape[1])):
                sums += planes[:, tree]
            if begin + at == 0 and bias:
                sums = multiply_add(sums, factor, np.array(bias))
            else:
                sums *= factor
            planes[:, number] = sums
        return planes[:, : len(firsts)]

    def finish(self, sums: Array, begin: int) -> None:
        """Scale sums in place: CatBoost adds its bias to the first rounds alone."""
        if begin == 0:
            self.forest.finish(sums)
        elif self.forest.scaling:
            sums *= self.forest.scaling[0]

    def spec(self, begin: int, end: int) -> AnswerSpec:
        """Return how the scores of rounds [begin, end) become answers."""
        forest = self.forest
        outputs = forest.outputs
        if outputs.divisor > 1:  # LightGBM's averages
            outputs = replace(outputs, divisor=end - begin)
        if outputs.function == "samme":
            outputs = replace(outputs, parameter=self._weights[end - 1])
        if self.medians:
            outputs = replace(outputs, weights=outputs.weights[:end])
            return replace(forest.answers, outputs=outputs, n_outputs=end)
        return replace(forest.answers, outputs=outputs)

    @property
    def medians(self) -> bool:
        """Whether each tree has a score of its own, and answers are their medians."""
        return self.forest.outputs.function == "weighted_median"

    @property
    def varies(self) -> bool:
        """Whether the rules for answers depend on the number of rounds."""
        outputs = self.forest.outputs
        return outputs.divisor > 1 or outputs.function == "samme"

    @cached_property
    def _weights(self) -> list[float]:
        """The sums of AdaBoost's weights, which it adds one by one."""
        forest = self.forest
        best = np.full(forest.n_nodes, -np.inf)
        leaves = forest.leaf >= 0
        best[leaves] = forest.leaf_value[forest.leaf[leaves]].max(axis=1)
        weights = np.maximum.reduceat(best, forest.tree_offset[:-1])
        return [*accumulate(weights.tolist())]

    def part(self, begin: int, end: int) -> Forest:
        forest = subset(self.forest, self.trees(begin, end))
        scaling = forest.scaling if begin == 0 else forest.scaling[:1]
        outputs = self.spec(begin, end).outputs
        forest = replace(forest, hashed=None, row_norms=())  # rows are made
        return replace(forest, outputs=outputs, scaling=scaling)


#: Libraries whose trees come in rounds. Of scikit-learn, not all models are boosted.
_BOOSTED = ("xgboost", "lightgbm", "catboost", "sklearn")


def ends_in_bias(forest: Forest) -> bool:
    """Tell whether the last tree is the bias that CatBoost adds last."""
    if forest.source != "catboost" or not forest.n_trees:
        return False
    return bool(forest.source_node[forest.tree_offset[-2]] == -1) and bool(
        forest.tree_offset[-1] - forest.tree_offset[-2] == 1
    )
