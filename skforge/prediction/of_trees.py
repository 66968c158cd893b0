"""Answers of single trees: leaves, values and contributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError, UnsupportedModelError, warn
from skforge.forest.rounds import ends_in_bias
from skforge.outputs.answers import of_scores
from skforge.prediction.at_door import at_door
from skforge.sources.fitted import returns_frames


class OfTrees:
    """A base of ``ForestPredictor``."""

    __slots__ = ()

    def transformed(self: Any, X: Any) -> Any:
        raw = self._by_kernels("predict_raw", X, None)
        return of_scores(self.forest.answers, "transformed", np.asarray(raw))

    @at_door
    def apply(self: Any, X: Any, n_jobs: int | None = None) -> Any:
        if self._on_device(X):
            leaves = self.module.run("leaves", X)
        else:
            by, rows, given = self.read(X, "apply")
            if rows is None:
                return self.ask("apply", given)
            leaves = by.engine.run("leaves", rows, n_jobs)
        if ends_in_bias(self.forest):
            leaves = leaves[:, :-1]
        self.counters.add(self._route, len(leaves))
        return self.source.answers.leaves(leaves)

    @at_door
    def transform(self: Any, X: Any, n_jobs: int | None = None) -> Any:
        """Return a matrix, or votes; who is to return frames does so itself."""
        stored, answers = self.source.stored is not None, self.source.answers
        known = answers.transforms if stored else answers.matrix
        if not known or returns_frames(self.source.model):
            return self.ask("transform", X)
        if not answers.matrix:
            return self.answer("transform", X, n_jobs)
        columns = self.answer("predict_raw", X, n_jobs)
        return answers.one_hot(columns, self.forest.n_leaves)

    def per_tree(self: Any, X: Any, n_jobs: int | None = None) -> Array:
        self._refuse_members("the values of single trees")
        self.numbers_meet(X)
        by, rows = self._numbers(X, "values of single trees")
        values = by.engine.run("per_tree", rows, n_jobs)
        self.counters.add(self._route, len(values))
        return values

    def _refuse_members(self: Any, what: str) -> None:
        name, none = self.source.class_name, f"for which {what} are not defined"
        if not self.source.explains:
            raise UnsupportedModelError(
                f"{name} answers with something else than sums of its trees, {none}."
            )
        if self._by_members:
            raise UnsupportedModelError(
                f"{name} computes its predictions from the raw scores of several "
                f"forests, {none}; compile one of its estimators."
            )

    def contribs(
        self: Any,
        X: Any,
        n_jobs: int | None = None,
        background: Any = None,
        **options: Any,
    ) -> Array:
        self._refuse_members("contributions")
        self.numbers_meet(X)
        if (reader := self.of_rows(X)) is not self:
            return reader.contribs(X, n_jobs, background, **options)
        plain = background is None and not any(options.values())
        jobs = self.module.n_jobs if n_jobs is None else n_jobs
        if plain and self._direct and jobs in (None, 1):
            entry = self.entries.get("predict_contribs")
            if entry is not None and (answer := entry(X)) is not None:
                if self._warning:
                    warn(self._warning)
                return answer
        by, rows = self._numbers(X)
        if background is not None:  # read as the rows are
            _, options["background"] = self._numbers(background, by=by)
        values = by.engine.run("contribs", rows, n_jobs, **options)
        if plain and by is self and "predict_contribs" not in self.entries:
            self._explain_by_entry(rows, values)
        self.counters.add(self._route, len(values))
        return values

    def _numbers(
        self: Any, X: Any, what: str = "contributions", by: Any = None
    ) -> tuple[Any, Any]:
        """Return who reads rows, and the numbers; raise if only the model does."""
        if getattr(X, "shape", None) == (0, self.forest.n_columns):  # not all take it
            return by or self, np.empty((0, self.forest.n_features), self._dtype)
        if self._on_device(X):
            raise InvalidInputError(
                f"{what} need rows in host memory, but these are on a GPU; pass a "
                "NumPy array."
            )
        by, rows, given = self.read(X, "predict_raw", by)
        if rows is None:
            self.ask("predict", given)  # rows that the model refuses have its own error
            raise InvalidInputError(
                f"{what} need rows that kernels read, but {self.source.class_name} "
                f"answers these ({type(X).__name__}) itself; pass a float64 array or "
                "DataFrame of its features, with numbers that float32 holds."
            )
        return by, rows
