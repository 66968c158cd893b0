"""``CompiledForest``: a user's model with compiled predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.base import is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils._param_validation import HasMethods, Hidden, Interval, StrOptions
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from skforge._docs import documented
from skforge._typing import Array
from skforge.compiler.target import Target
from skforge.display.notebook import Displayed
from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.engine.engine import MethodName
from skforge.exceptions import InvalidInputError
from skforge.frontends.base import is_search, last_step, unwrap
from skforge.modules.compiled import CompiledModule
from skforge.prediction.delegation import fitted_model, validated
from skforge.prediction.fitting import make
from skforge.prediction.shadow import shadow_state
from skforge.prediction.stored_answers import compare_stored
from skforge.prediction.who_answers import table_of
from skforge.runtime.mappings import is_mapped
from skforge.schedule.schedule import Schedule
from skforge.sources.fitted import is_compared, model_of, offered
from skforge.tuning.tuner import STRATEGIES

__all__ = ["CompiledForest"]


@dataclass(eq=False, repr=False)
class CompiledForest(Displayed):
    """A tree ensemble with compiled predictions, equal bit for bit to its own.

    Parameters
    ----------
    estimator : estimator, Booster, path, bytes, binary file, ModelProto or Forest
        What to compile:

        - a scikit-learn, XGBoost, LightGBM or CatBoost forest, fitted or not;
        - a ``Pipeline`` that ends in one: its last transformers are folded into the
          trees, as many as can be, and the others run in their library;
        - a ``CalibratedClassifierCV``, ``FixedThresholdClassifier``,
          ``TunedThresholdClassifierCV``, ``TransformedTargetRegressor``,
          ``MultiOutput*``, ``OneVsRestClassifier`` or ``Voting*`` around these;
        - a stack, a chain or another model of models: its members are compiled;
        - a search over one of these, such as ``GridSearchCV``: its
          ``best_estimator_`` is compiled;
        - a Booster, an ONNX model, or a saved model as a path, bytes or an open file.
          These cannot be trained and are compiled as they are.
    prefit : {"auto", True, False}, default="auto"
        Whether ``estimator`` is already fitted. "auto": ``fit`` uses a fitted
        estimator as it is, and trains a clone of one that is not. A fitted estimator
        is never changed. ``clone``, and so cross-validation, drops the fit;
        ``FrozenEstimator(model)`` keeps it.
    schedule : "auto", str, Schedule or dict, default="auto"
        One schedule, a preset's name, or one of these for each range of batch sizes,
        ``{(first, last): ...}``. "auto": the best schedules that ``tuning`` finds.
    target : str or Target, default="auto"
        The machine to compile for. "cpu": this CPU. "cuda", "hip": CuPy's current
        GPU. "auto": the CPU and, if there is one, the GPU; each batch runs on the
        faster of the two. "emulated": the CPU runs GPU schedules.
    reduction : {"exact", "reproducible", "fast"}, default="exact"
        How leaf values are summed. Only "exact" returns the model's own bits.
    tuning : {"off", "heuristic", "learned", "exhaustive", "random", "halving"} \
            or Tuner, default="heuristic"
        How ``fit`` searches for schedules if ``schedule="auto"``; it times them on
        this machine, with the rows of ``X``. "heuristic" times a schedule only if the
        gain that the cost model expects is worth the time of the trial; most models
        have no such schedule. "off" uses the static defaults and measures nothing.
        Later forests of a similar shape, such as clones in cross-validation, reuse a
        result, and ``tuning_result_.notes`` says so; ``Tuner(records=None)`` or
        ``SKFORGE_CACHE=off`` searches again. The search takes at most 4 seconds, with
        compilation, and 10 on a GPU, or ``SKFORGE_TUNING_SECONDS``; if this variable
        is 0, nothing is searched. A :class:`skforge.tuning.Tuner` sets the seconds,
        the space and the records.
    tuning_budget : float, default="deprecated"
        .. deprecated:: 0.2
           Use ``tuning=Tuner(budget=...)``; ``tuning_budget`` will be removed in 0.4.
    batch_sizes : array-like of int, default=None
        Batch sizes to choose schedules for. Each one also covers the sizes down to
        the next smaller one. None means ranges that suit most uses.
    gpu_min_rows : int, default=None
        With ``target="auto"`` and a GPU, the batch size from which the GPU is used.
        None: ``fit`` measures it, or takes 100 if ``tuning="off"``. You can change it
        after ``fit``.
    n_jobs : int, default=None
        Maximum threads per call; None means 1 and -1 all. Small batches stay on the
        calling thread.
    random_state : int, RandomState instance or None, default=None
        Seed of the search. It is not passed to ``estimator``.
    verbose : int or None, default=None
        Progress of the search. None: a bar after one second, but only in terminals
        and notebooks, not in pipes, logs and worker processes. 0: nothing. 1: a bar or
        log lines. 2: more.

    Attributes
    ----------
    estimator_ : object
        The fitted model: ``estimator`` itself, or the clone that was trained. Its
        fitted attributes (``classes_``, ``feature_importances_``, ...) are available
        on this object too.
    search_ : object
        The fitted search whose ``best_estimator_`` is ``estimator_``; set only if
        ``estimator`` is a search, such as ``GridSearchCV``.
    forest_ : Forest
        The forest read from the model. Of a pipeline, it takes the rows that come out
        of the steps run by their library. Of a wrapper around several models, it is
        their common forest, or the first one if they cannot be one or are compiled
        one by one.
    schedule_ : dict of (int, int or None) -> Schedule
        The schedule of each range of batch sizes.
    target_ : Target
        The machine that predictions run on: the GPU if both are used, and after
        loading this CPU.
    gpu_min_rows_ : int or None
        Batch size from which the GPU is used; None if there is only one target.
    fitted_target_ : Target
        The machine that ``fit`` chose the schedules for.
    tuning_result_ : TuningResult or None
        All trials of the search and their times; None if ``fit`` searched nothing.
    compile_time_ : float
        Seconds that ``fit`` spent on reading and compiling, without the search; 0 in a
        loaded file.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from skforge import CompiledForest
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    >>> fast = CompiledForest(forest).fit(X)
    >>> bool((fast.predict_proba(X) == forest.predict_proba(X)).all())
    True
    >>> fast.classes_, fast.forest_.n_trees
    (array([0, 1, 2]), 10)
    """

    #: This class consumes no metadata itself; see ``get_metadata_routing``.
    __metadata_request__fit = {"sample_weight": UNUSED}  # noqa: RUF012
    __metadata_request__score = {"sample_weight": UNUSED}  # noqa: RUF012

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",
        "prefit": [StrOptions({"auto"}), "boolean"],
        "schedule": [str, Schedule, Mapping],
        "target": [str, Target],
        "reduction": [StrOptions({"exact", "reproducible", "fast"})],
        "tuning": [StrOptions({"off", *STRATEGIES}), HasMethods(["tune"])],
        "tuning_budget": [
            Interval(Real, 0, None, closed="neither"),
            None,
            Hidden(StrOptions({"deprecated"})),
        ],
        "batch_sizes": ["array-like", None],
        "gpu_min_rows": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose", None],
    }

    # ------------------------------------------------------------------ fit

    @validated
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any
    ) -> CompiledForest:
        """Train the model if it is not fitted, compile it and check the result.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, or sample rows for a fitted model. The compiled forest is
            compared with its source on up to 256 of these and on 128 random rows.
        y : array-like, default=None
            Targets; used only to train.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights; used only to train.
        **fit_params : dict
            Passed to the model's ``fit`` (``eval_set``, ``group``, ...), by metadata
            routing if that is enabled.

        Returns
        -------
        CompiledForest
            Itself. After an error it is unchanged.

        Raises
        ------
        UnsupportedModelError
            If the model cannot be reproduced exactly.
        ScheduleError, TargetError
            If the schedule does not fit the forest, or the target is not available.
        VerificationError
            If a compiled prediction differs from the source's. Kernels of larger
            batches are compiled and compared when a call first needs them.
        """
        resolve_n_jobs(self.n_jobs)  # before a model is trained
        shadow = shadow_state()
        fitted = fitted_model(self, X, y, sample_weight, fit_params)
        model = unwrap(fitted)
        if X is None:
            raise InvalidInputError(
                "X is None, but fit compares compiled predictions with the model's on "
                "rows; pass some with the columns of training, such as "
                "CompiledForest(model).fit(X_train[:1000]). compile_forest(model) "
                "takes no rows."
            )
        self._keep(make(self, model, X), shadow)
        if is_search(fitted):
            self.search_ = fitted
        return self

    @offered
    @documented(fit)
    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Fit, and return -1 for outliers and 1 for all other rows.

        Parameters
        ----------
        y : None
            Not used.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.fit(X, **fit_params).predict(X)

    @offered
    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the model's score: accuracy of classifiers, R² of regressors.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like, default=None
            True targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        if is_mapped(X):
            X = self._compiled().framed(X)
        model = model_of(self)
        method = getattr(type(last_step(model)), "score", None)
        if method is None or method.__module__ == "sklearn.base":
            measure = {True: accuracy_score, False: r2_score}[is_classifier(self)]
            return float(measure(y, self.predict(X), sample_weight=sample_weight))
        self._check_model()
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(model.score(X, y, **weights))

    @documented(CompiledModule.inspect)
    def inspect(
        self, level: str, *, n_rows: int | None = None, method: MethodName = "predict"
    ) -> str:
        """Return a level of the compilation as text.

        Also "pipeline": which steps are folded into the trees or which members are
        compiled, and why others are not.
        """
        if level == "pipeline":
            check_is_fitted(self)
            return table_of(self)
        return str(self._compiled().module.inspect(level, n_rows=n_rows, method=method))

    def drop_estimator(self) -> CompiledForest:
        """Return a copy that keeps the forest but not the source model.

        The copy is smaller, and unpickles without the source library. Its predictions
        are the same; class labels, fitted attributes and row rules are kept as plain
        data, as in a ``.skforge`` file.

        Returns
        -------
        CompiledForest
            Without ``estimator_``. Calls that need the model, such as ``predict`` with
            further arguments, raise ``SourceNeededError``.

        Raises
        ------
        UnsupportedModelError
            If rows or answers cannot be computed without the model, or the labels are
            not plain values.
        VerificationError
            If the copy answers otherwise than the model.
        """
        check_is_fitted(self)
        copy: CompiledForest = self._without_source()
        if is_compared(self):
            compare_stored(self, copy)
        return copy
