"""The methods of a fitted model.

None of it needs scikit-learn, so that a loaded model answers without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge._docs import documented
from skforge.modules.compiled import CompiledModule
from skforge.prediction import of_rounds, of_trees
from skforge.prediction.counters import Counters
from skforge.prediction.of_out import answer_into
from skforge.prediction.predictor import METHODS
from skforge.prediction.revived import Revived
from skforge.sources.fitted import model_of, offered

if TYPE_CHECKING:
    from typing_extensions import Self


class Answering(Revived):
    """The methods of a fitted ``CompiledForest``."""

    @offered
    def predict(self, X: Any, *args: Any, **params: Any) -> NDArray[Any]:
        """Return what the model's own ``predict`` returns, bit for bit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of any kind that the model accepts. C-contiguous arrays of
            ``forest_.input_dtype`` are fastest. Also a mapping from column names to
            values, which is one row, or to columns of values, or a list of mappings.
        *args : tuple
            Further arguments of the model's method, by position.
        **params : dict
            The same by name. Kernels answer for the rounds
            that XGBoost's ``iteration_range``, LightGBM's ``num_iteration`` and
            ``start_iteration`` or CatBoost's ``ntree_start`` and ``ntree_end`` choose,
            and the model itself for others.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Labels for a classifier, also if the model is a Booster or a file.
        """
        if args or params:
            return of_rounds.asked(self._compiled(), "predict", X, args, params)
        return self._compiled().answer("predict", X, self.n_jobs)

    @offered
    @documented(predict)
    def predict_proba(
        self, X: Any, *args: Any, out: Any = None, **params: Any
    ) -> NDArray[Any]:
        """Return the probability of each class.

        Parameters
        ----------
        out : ndarray of the answer's shape and dtype, default=None
            Where to write the probabilities; a ``numpy.memmap`` for answers that do
            not fit in memory.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or a list of them
            A list for multi-output scikit-learn models.
        """
        if out is not None:
            how = "predict_proba", X, self.n_jobs, args, params
            return answer_into(out, self._compiled(), *how)
        if args or params:
            return of_rounds.asked(self._compiled(), "predict_proba", X, args, params)
        return self._compiled().answer("predict_proba", X, self.n_jobs)

    @offered
    @documented(predict)
    def predict_log_proba(self, X: Any, *args: Any, **params: Any) -> NDArray[Any]:
        """Return the logarithm of the probability of each class.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or a list of them
            As :meth:`predict_proba`.
        """
        if args or params:
            return of_rounds.asked(
                self._compiled(), "predict_log_proba", X, args, params
            )
        return self._compiled().predict_log_proba(X, self.n_jobs)

    @offered
    @documented(predict)
    def decision_function(self, X: Any, *args: Any, **params: Any) -> NDArray[Any]:
        """Return the model's own decision function.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
        """
        if args or params:
            return of_rounds.asked(
                self._compiled(), "decision_function", X, args, params
            )
        return self._compiled().answer("decision_function", X, self.n_jobs)

    @offered
    @documented(predict)
    def score_samples(self, X: Any) -> NDArray[Any]:
        """Return the model's own scores of the rows.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._compiled().answer("score_samples", X, self.n_jobs)

    @offered
    @documented(predict)
    def predict_cumulative_hazard_function(
        self, X: Any, return_array: bool = False
    ) -> NDArray[Any]:
        """Return each row's cumulative hazard, as scikit-survival does.

        Parameters
        ----------
        return_array : bool, default=False
            Whether to return hazards at ``unique_times_`` in place of functions.

        Returns
        -------
        ndarray of StepFunction, shape (n_samples,)
            Or of float64, shape (n_samples, n_unique_times).
        """
        return self._curves("predict_cumulative_hazard_function", X, return_array)

    @offered
    @documented(predict_cumulative_hazard_function)
    def predict_survival_function(
        self, X: Any, return_array: bool = False
    ) -> NDArray[Any]:
        """Return each row's probability of survival, as scikit-survival does."""
        return self._curves("predict_survival_function", X, return_array)

    def _curves(self, method: str, X: Any, as_array: bool) -> NDArray[Any]:
        predictor = self._compiled()
        how = {"return_array": True}
        curves: NDArray[Any] = predictor.answer_by_leaves(method, X, self.n_jobs, how)
        return curves if as_array else predictor.leaf_answers.step_functions(curves)

    @offered
    @documented(predict)
    def apply(self, X: Any, *args: Any, **params: Any) -> NDArray[Any]:
        """Return the leaf that each row reaches in each tree, numbered by the source.

        Returns
        -------
        ndarray of shape (n_samples, n_trees)
            In the source's dtype; (n_samples,) if the source drops an axis.
        """
        if args or params:
            return of_rounds.asked(self._compiled(), "apply", X, args, params)
        return of_trees.apply(self._compiled(), X, self.n_jobs)

    @offered
    @documented(predict)
    def decision_path(self, X: Any) -> Any:
        """Return the nodes that each row passes; scikit-learn itself answers.

        Returns
        -------
        sparse matrix of shape (n_samples, n_nodes)
            In CSR format. Of a forest, a pair of it and of the place of each tree's
            first node, an ndarray of shape (n_trees + 1,).
        """
        return self._compiled().ask("decision_path", X)

    @offered
    @documented(predict)
    def transform(self, X: Any) -> Any:
        """Return ``RandomTreesEmbedding``'s matrix of leaves, or the votes of members.

        Returns
        -------
        sparse matrix or ndarray of shape (n_samples, n_leaves)
            Of a voting model, an ndarray with what each member answers.
        """
        return of_trees.transform(self._compiled(), X, self.n_jobs)

    @offered
    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the model's names of the columns that ``transform`` returns.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names for the model to compare with those of training.

        Returns
        -------
        ndarray of str objects, shape (n_columns,)
        """
        self._check_model()
        names: NDArray[Any] = model_of(self).get_feature_names_out(input_features)
        return names

    @offered
    @documented(CompiledModule.predict_raw)
    def predict_raw(self, X: Any, *, out: Any = None) -> NDArray[Any]:
        """Return raw scores: XGBoost's margins, scikit-learn forests' averages."""
        predictor = self._compiled()
        if out is not None:
            return answer_into(out, predictor, "predict_raw", X, self.n_jobs)
        return predictor.answer("predict_raw", X, self.n_jobs)

    @offered
    @documented(predict)
    def staged_predict(self, X: Any, *args: Any, **params: Any) -> Iterator[Any]:
        """Return what ``predict`` returns after each boosting round, one by one.

        Parameters
        ----------
        *args : tuple
            Further arguments of CatBoost's method, by position.
        **params : dict
            The same by name: ``ntree_start``, ``ntree_end``, ``eval_period``,
            ``prediction_type``.

        Returns
        -------
        generator of ndarray
            In the bits of the model's own method, if it has one, and otherwise of its
            ``predict`` with ``iteration_range=(0, k)`` or ``num_iteration=k``.
        """
        return self._staged("predict", X, args, params)

    def _staged(self, method: str, X: Any, args: Any, params: Any) -> Iterator[Any]:
        predictor = self._compiled()
        if args:
            origin = predictor.source.origin
            params = origin.named(f"staged_{method}", X, args, params)
        return of_rounds.staged(predictor, method, X, self.n_jobs, params)

    @offered
    @documented(staged_predict)
    def staged_predict_proba(self, X: Any, *args: Any, **params: Any) -> Iterator[Any]:
        """Return the probabilities after each boosting round, one by one."""
        return self._staged("predict_proba", X, args, params)

    @offered
    @documented(staged_predict)
    def staged_decision_function(self, X: Any) -> Iterator[Any]:
        """Return the decision function after each boosting round, one by one."""
        return self._staged("decision_function", X, (), {})

    @offered
    @documented(CompiledModule.predict_per_tree)
    def predict_per_tree(self, X: Any) -> NDArray[Any]:
        """Return the value of the leaf that each row reaches in each tree."""
        return of_trees.per_tree(self._compiled(), X, self.n_jobs)

    @offered
    @documented(CompiledModule.predict_contribs)
    def predict_contribs(
        self,
        X: Any,
        *,
        interactions: bool = False,
        approximate: bool = False,
        background: Any = None,
    ) -> Any:
        """Return what each feature contributes to the raw scores (SHAP values)."""
        how = {"interactions": interactions, "approximate": approximate}
        return of_trees.contribs(self._compiled(), X, self.n_jobs, background, **how)

    @documented(CompiledModule.warm_up)
    def warm_up(
        self,
        batch_sizes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        *,
        contribs: bool = False,
    ) -> Self:
        """Compile everything now that calls would compile on first use.

        In a service, no request then waits for the compiler. ``fit`` compiles the
        scores of the smallest batches only; a loaded or unpickled object has nothing
        compiled. Kernels are compared on sample rows as they are compiled. If one is
        wrong, a ``VerificationWarning`` says so, or a ``VerificationError`` if no other
        can take its place.
        """
        methods = [name for name in METHODS if hasattr(self, name)]
        self._compiled().warm_up(methods, batch_sizes, self.n_jobs, contribs)
        return self

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the calls and rows answered so far, by the code that answered.

        Counting takes about a nanosecond, and no lock. Calls of all threads count, on
        all kinds of rows; calls that raise do not. A fit, a copy and an unpickled or
        loaded object start from zero.

        Returns
        -------
        dict of str -> dict of str -> int
            ``"calls"`` and ``"rows"`` of

            - ``"entry"``: compiled code that Python calls directly,
            - ``"kernel"``: compiled kernels, after checks of the rows in Python,
            - ``"steps"``: the same after steps of a pipeline that run in their library,
            - ``"library"``: the model itself, at its own speed.

            While ``SKFORGE_CHECK`` compares calls, also of ``"checked"`` calls, and of
            ``"different"`` ones with the rows that differed. Both are there as well
            once a form of rows has differed from the model.
        """
        self._check_fitted()
        checks = getattr(self.__dict__.get("_shadow"), "compares", False)
        # without a predictor no calls, but those before the model was whole
        before = Counters(getattr(self.__dict__.get("_before"), "counts", ()))
        predictor = self.__dict__.get("_predictor")
        return getattr(predictor, "counters", before).read(checks)
