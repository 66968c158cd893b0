"""The methods of a compiled forest: they read rows as users have them, and run kernels.

Rows are arrays, lists, sparse matrices, frames, or arrays in a GPU's memory. What knows
a library's own rules for rows reads them itself, and asks the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge._compat import cached_property
from skforge._docs import documented
from skforge._typing import Array
from skforge.compiler.backend import on_device
from skforge.compiler.target import Target
from skforge.engine.arrays import into, is_device_array
from skforge.engine.by_round import ARGUMENTS, asked, blocks_of
from skforge.engine.engine import Answered
from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import AnswerSpec
from skforge.forest.rounds import ends_in_bias
from skforge.frontends.checks import refuse_arguments
from skforge.outputs import steps
from skforge.outputs.answers import of_scores
from skforge.rows.readers import RowReader, reader_of

OutArray: TypeAlias = Array | None
_Predicted: TypeAlias = Literal["raw", "transformed"]


class Methods:
    """A base of ``CompiledModule`` and ``AutoModule``, before what runs kernels."""

    forest: Forest
    target: Target
    parts: Any
    run: Callable[..., Array]
    stages: Callable[..., Iterator[tuple[AnswerSpec, Array]]]
    count_small: Callable[[steps.Output, int], None]
    _entries: dict[steps.Output, Callable[[Any], Array | None] | None]
    #: Explains small batches without options.
    _explains: Callable[[Any], Array | None] | None = None

    @cached_property
    def _reader(self) -> RowReader:
        return reader_of(self.forest)

    def of_users(self, entry: Any) -> Any:
        return self._reader.entry(entry)

    def predict_raw(
        self, X: Any, *, n_jobs: int | None = None, out: OutArray = None, **rounds: Any
    ) -> Array:
        """Return raw scores (margins): sums of leaf values, averaged if the source is.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Rows, cast to the forest's input dtype as the source does. With a GPU, also
            arrays in its memory (CuPy, PyTorch, DLPack).
        n_jobs : int or None
            Maximum number of threads; None uses the module's own setting.
        out : ndarray of the result's shape and dtype, default=None
            Where to write the results of rows in host memory; a ``numpy.memmap`` for
            results that do not fit in memory.
        **rounds : dict
            Boosting rounds, by the library's own arguments: ``iteration_range`` of
            XGBoost, ``num_iteration`` and ``start_iteration`` of LightGBM,
            ``ntree_start`` and ``ntree_end`` of CatBoost.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            In the accumulator's dtype; ``out`` if it was given. For rows on a GPU, a
            CuPy array written on the current stream.

        Raises
        ------
        InvalidInputError
            If the rows do not fit the forest, or ``out`` the results.
        """
        return self._predicted("raw", X, n_jobs, out, rounds)

    @documented(predict_raw)
    def predict(
        self, X: Any, *, n_jobs: int | None = None, out: OutArray = None, **rounds: Any
    ) -> Array:
        """Return the source's output: raw scores after its transform.

        For classifiers these are the probabilities that a Booster returns, not labels.

        Returns
        -------
        ndarray
            In the source's shape and dtype; ``out`` if it was given.
        """
        return self._predicted("transformed", X, n_jobs, out, rounds)

    def apply(self, X: Any, *, n_jobs: int | None = None) -> NDArray[np.int32]:
        """Return the leaf that each row reaches, in the source's node numbers.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Rows, as :meth:`predict_raw` takes them.
        n_jobs : int or None
            Maximum number of threads; None uses the module's own setting.

        Returns
        -------
        ndarray of int32, shape (n_rows, n_trees)
            CatBoost's bias is no tree.
        """
        leaves = self._answer("leaves", X, n_jobs)
        return leaves[:, :-1].copy() if ends_in_bias(self.forest) else leaves

    @documented(apply)
    def predict_per_tree(self, X: Any, *, n_jobs: int | None = None) -> Array:
        """Return the value of the leaf that each row reaches in each tree.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Rows, as :meth:`predict_raw` takes them, in host memory.

        Returns
        -------
        ndarray of shape (n_rows, n_trees) or (n_rows, n_trees, n_outputs)
            What each tree adds to the raw scores, before these are averaged or scaled,
            in the order of the trees; the last axis if trees add to every output.

        Examples
        --------
        >>> from sklearn.ensemble import GradientBoostingRegressor
        >>> from skforge import compile_forest
        >>> model = GradientBoostingRegressor(n_estimators=2, learning_rate=0.5)
        >>> model = model.fit([[0.0], [1.0]], [3.0, 5.0])
        >>> compile_forest(model).predict_per_tree([[0.0], [1.0]])
        array([[-0.5 , -0.25],
               [ 0.5 ,  0.25]])
        """
        if is_device_array(X):
            raise InvalidInputError(
                "the values of single trees need rows in host memory, but these are on "
                "a GPU; pass a NumPy array."
            )
        return self._answer("per_tree", X, n_jobs)

    def predict_contribs(
        self,
        X: Any,
        *,
        interactions: bool = False,
        approximate: bool = False,
        background: Any = None,
        n_jobs: int | None = None,
    ) -> Array:
        """Return what each feature contributes to the raw scores (SHAP values).

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            As for :meth:`predict_raw`.
        interactions : bool, default=False
            Return SHAP interaction values, with one more axis of ``n_features + 1``.
            With a background they are interventional, too.
        approximate : bool, default=False
            Return Saabas' values instead: the changes of the mean along each path.
        background : array-like of shape (n_background, n_features), default=None
            Take features that are not known from these rows (interventional values)
            instead of following the training rows (path-dependent values).
        n_jobs : int or None
            As for :meth:`predict_raw`.

        Returns
        -------
        ndarray of shape (n_rows, n_columns + 1) or (n_rows, n_outputs, n_columns + 1)
            In the dtype of the source's sums, for each column of the source's rows: a
            combination of CatBoost's categories shares what it contributes among its
            columns. The last column is the expected raw
            score; each row adds up to :meth:`predict_raw`, for an IsolationForest
            divided by its number of trees: its mean path length, as in shap.

        Raises
        ------
        UnsupportedModelError
            If the model does not keep the covers of its nodes, or ``interactions`` are
            asked of trees that test combinations of categories.
        """
        options = {"interactions": interactions, "approximate": approximate}
        plain = background is None and not any(options.values())
        plain = plain and n_jobs is None
        by_entry = self._explains if plain else None
        if by_entry is not None and (answer := by_entry(X)) is not None:
            return answer
        if is_device_array(X):
            raise InvalidInputError(
                "contributions need rows in host memory, but these are on a GPU; pass "
                "a NumPy array."
            )
        rows = self._reader.rows(X)
        if background is not None:
            background = self._reader.rows(background)
        contribs = self.run("contribs", rows, n_jobs, background=background, **options)
        if plain and self._explains is None:
            self._explains = self.parts[0].entry_of_few(len(rows))
        return contribs

    @documented(predict_per_tree)
    def staged_predict_raw(
        self, X: Any, *, n_jobs: int | None = None
    ) -> Iterator[Array]:
        """Return the raw scores after each boosting round, from the first one on.

        Returns
        -------
        generator of ndarray
            What ``predict_raw`` of the library returns for 1, 2, ... rounds. CatBoost's
            are those of its ``staged_predict``, which adds the bias to the first tree.

        Raises
        ------
        UnsupportedModelError
            If the model has no boosting rounds.
        """
        return (raw for _, raw in self._staged(X, n_jobs))

    @documented(staged_predict_raw)
    def staged_predict(self, X: Any, *, n_jobs: int | None = None) -> Iterator[Array]:
        """Return the source's output after each boosting round, from the first one on.

        Returns
        -------
        generator of ndarray
            What :meth:`predict` returns for 1, 2, ... rounds, in the library's bits.

        Examples
        --------
        >>> from sklearn.ensemble import GradientBoostingRegressor
        >>> from skforge import compile_forest
        >>> model = GradientBoostingRegressor(n_estimators=2, learning_rate=0.5)
        >>> model = model.fit([[0.0], [1.0]], [3.0, 5.0])
        >>> [*compile_forest(model).staged_predict([[0.0], [1.0]])]
        [array([3.5, 4.5]), array([3.25, 4.75])]
        """
        stages = self._staged(X, n_jobs)
        return (of_scores(spec, "transformed", raw) for spec, raw in stages)

    def _staged(self, X: Any, n_jobs: int | None) -> Iterator[tuple[AnswerSpec, Array]]:
        rounds = self.parts[0].rounds
        if rounds is None:
            raise UnsupportedModelError(
                "The model has no boosting rounds, so there are no predictions after "
                "each of them."
            )
        if is_device_array(X):
            raise InvalidInputError(
                "predictions after each round need rows in host memory, but these are "
                "on a GPU; pass a NumPy array."
            )
        rows = self._reader.rows(X)
        blocks = partial(blocks_of, rows)
        return self.stages(blocks, len(rows), 0, rounds.n, n_jobs=n_jobs)

    def _answer(
        self, what: Answered, X: Any, n_jobs: int | None, **options: Any
    ) -> Array:
        if type(X) is np.ndarray:
            return self.run(what, self._reader.rows(X), n_jobs, **options)
        rows = self._reader.parts(X)
        parts = [self.run(what, part, n_jobs, **options) for part in rows]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _predicted(
        self, output: _Predicted, X: Any, n_jobs: int | None, out: OutArray, rounds: Any
    ) -> Array:
        """Return predictions by the entry or, where it declines rows, by kernels."""
        if rounds:
            values: Array | None = self._of_some_rounds(output, X, n_jobs, rounds)
        else:
            entry = self._entries.get(output) if n_jobs is None else None
            values = None if entry is None else entry(X)
        if values is None:
            values = self._answer("raw", X, n_jobs)
            if isinstance(values, np.ndarray):
                self.count_small(output, len(values))
            if output == "transformed":
                values = self._transformed(X, self.forest.answers, values)
        return values if out is None else into(out, values)

    def _transformed(self, X: Any, spec: AnswerSpec, raw: Array) -> Array:
        if is_device_array(X):
            rule = partial(of_scores, spec, "transformed")
            answer: Array = on_device().answered(self.target, rule, raw)
            return answer
        return of_scores(spec, "transformed", raw)

    def _of_some_rounds(
        self, output: _Predicted, X: Any, n_jobs: int | None, params: Any
    ) -> Array | None:
        """Return predictions of some rounds; None if these are all."""
        rounds = self.parts[0].rounds
        known = () if rounds is None else ARGUMENTS.get(self.forest.source, ())
        method = "predict_raw" if output == "raw" else "predict"
        refuse_arguments(method, params.keys() - {*known})
        begin, end = asked(rounds, params)
        if (begin, end) == (0, rounds.n):
            return None
        raw = self._answer("raw_of_rounds", X, n_jobs, begin=begin, end=end)
        if output == "raw":
            return raw
        return self._transformed(X, rounds.spec(begin, end), raw)
