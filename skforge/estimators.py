"""``CompiledForest``: the model a user has, with compiled predictions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import (
    MetaEstimatorMixin,
    is_classifier,
)
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metadata_routing import (
    UNUSED,
    MetadataRouter,
    MethodMapping,
)
from sklearn.utils.validation import check_is_fitted

from skforge._notebook import html_of, visual_block
from skforge.compiler.frontends.base import is_search, unwrap
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.runtime.auto import AutoModule
from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.prediction.dispatch import Choice, choose, compiled, searched, size_ranges
from skforge.prediction.predictor import METHODS, Predictor
from skforge.prediction.state import CompiledState
from skforge.prediction.verification import sample_rows, verify
from skforge.sources.delegation import (
    FITTED,
    attribute_of,
    fitted_model,
    is_estimator,
    model_of,
    no_attribute,
    offered,
    tags_of,
    validated,
)
from skforge.sources.find import read_model
from skforge.sources.store import store
from skforge.sources.stored_model import StoredModel
from skforge.tuning.result import TuningResult
from skforge.tuning.search.strategies import STRATEGIES

if TYPE_CHECKING:
    from skforge.tuning.tuner import Tuner

__all__ = ["CompiledForest"]

#: Rows of the sample that a search may predict.
TUNING_ROWS = 4096


class CompiledForest(MetaEstimatorMixin, CompiledState):
    """A tree ensemble whose predictions are compiled, and equal bit for bit.

    Parameters
    ----------
    estimator : estimator, Booster, path, ModelProto or Forest
        A forest of scikit-learn, XGBoost or LightGBM, fitted or not, or a search for
        one, such as ``GridSearchCV``, whose ``best_estimator_`` is taken; a Booster;
        an ONNX model; or the path of a saved model. What cannot be trained is taken
        as it is.
    prefit : {"auto", True, False}, default="auto"
        Whether ``estimator`` is used as it is fitted. "auto": if it is fitted, and
        else a clone is trained. A fitted one is never changed. ``clone`` (and so
        cross-validation) forgets the fit; ``FrozenEstimator(model)`` keeps it.
    schedule : "auto", str, Schedule or dict, default="auto"
        One schedule, a preset's name, or one of these for each range of batch sizes,
        ``{(first, last): ...}``. "auto" takes the default schedule of each range.
    target : str or Target, default="auto"
        What code is made for. "cpu": the CPU this runs on. "cuda", "hip": CuPy's
        current GPU. "auto": the CPU and, where there is a GPU, that too; each batch
        goes where it is done sooner. "emulated" runs GPU schedules on the CPU, and
        "emulated-source" the text of their kernels, for which it needs g++.
    reduction : {"exact", "reproducible", "fast"}, default="exact"
        How leaf values are summed; only "exact" keeps every bit of the source.
    tuning : {"off", "heuristic", "learned", "exhaustive", "random", "halving"} \
            or Tuner, default="heuristic"
        How the schedules that ``schedule="auto"`` leaves open are searched on this
        machine, with the rows given to ``fit``. "off" takes the static defaults and
        measures nothing. A :class:`skforge.tuning.Tuner` says more: which space, what
        budget, which records.
    tuning_budget : float, default=None
        Seconds a search may take, compiling included. None takes 4, or 10 on a GPU, or
        what the environment's ``SKFORGE_TUNING_SECONDS`` says; where that is 0, there
        is no search unless a budget is given.
    batch_sizes : array-like of int, default=None
        Batch sizes to choose schedules for; each serves the sizes down to the one
        before. None means ranges that suit most uses.
    gpu_min_rows : int, default=None
        Rows of a batch from which a GPU is used, where "auto" has found one. None
        takes 100 if ``tuning="off"``, and else measures it in ``fit``. Can be changed
        afterwards.
    n_jobs : int, default=None
        Threads of one call at most; None means 1 and -1 all. Small work stays on the
        calling thread.
    random_state : int, RandomState instance or None, default=None
        Seed of a search; never handed to ``estimator``.
    verbose : int, default=0
        Whether a search shows its progress: 1 as a bar, or lines in a log; 2 more.

    Attributes
    ----------
    estimator_ : object
        The fitted model: ``estimator`` itself, or the clone that was trained. Its
        fitted attributes (``classes_``, ``feature_importances_``, ...) are also ours.
    search_ : object
        The fitted search whose ``best_estimator_`` is ``estimator_``; only there if
        ``estimator`` is a search, such as ``GridSearchCV``.
    forest_ : Forest
        The forest as it was read.
    schedule_ : dict of (int, int or None) -> Schedule
        The schedule of each range of batch sizes.
    target_ : Target
        What was compiled for, a GPU where there are two; after loading, the CPU found.
    gpu_min_rows_ : int or None
        Rows from which a GPU is used; None where there is only one target.
    fitted_target_ : Target
        What the schedules were chosen for.
    tuning_result_ : TuningResult or None
        All that was tried, and how fast it was; None where nothing was searched.
    compile_time_ : float
        Seconds that reading and compiling took, without a search.

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

    #: No metadata is for this class itself; see ``get_metadata_routing``.
    __metadata_request__fit = {"sample_weight": UNUSED}  # noqa: RUF012
    __metadata_request__score = {"sample_weight": UNUSED}  # noqa: RUF012

    _parameter_constraints: dict[str, Any] = {  # noqa: RUF012
        "estimator": "no_validation",
        "prefit": [StrOptions({"auto"}), "boolean"],
        "schedule": [str, Schedule, Mapping],
        "target": [str, Target],
        "reduction": [StrOptions({"exact", "reproducible", "fast"})],
        "tuning": [StrOptions({"off", *STRATEGIES}), HasMethods(["tune"])],
        "tuning_budget": [Interval(Real, 0, None, closed="neither"), None],
        "batch_sizes": ["array-like", None],
        "gpu_min_rows": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        prefit: bool | Literal["auto"] = "auto",
        schedule: str | Schedule | Mapping[Any, Any] = "auto",
        target: str | Target = "auto",
        reduction: Reduction = "exact",
        tuning: str | Tuner = "heuristic",
        tuning_budget: float | None = None,
        batch_sizes: ArrayLike | None = None,
        gpu_min_rows: int | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.prefit = prefit
        self.schedule = schedule
        self.target = target
        self.reduction = reduction
        self.tuning = tuning
        self.tuning_budget = tuning_budget
        self.batch_sizes = batch_sizes
        self.gpu_min_rows = gpu_min_rows
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------ fit

    @validated
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any
    ) -> CompiledForest:
        """Train the model if it is not fitted, compile it and check the result.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, or sample rows for a model that is fitted. On these the
            compiled forest is compared with its source.
        y : array-like, default=None
            Targets; only used to train.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights; only used to train.
        **fit_params : dict
            Passed to the model's ``fit`` (``eval_set``, ``group``, ...); by metadata
            routing where that is enabled.

        Returns
        -------
        CompiledForest
            Itself. After an error it is what it was before the call.

        Raises
        ------
        UnsupportedModelError
            If the model cannot be reproduced exactly.
        ScheduleError, TargetError
            If the schedule does not fit the forest, or the target is not available.
        VerificationError
            If a compiled prediction differs from the source's.
        """
        resolve_n_jobs(self.n_jobs)  # before a model is trained
        given = fitted_model(self, X, y, sample_weight, fit_params)
        model = unwrap(given)
        start = time.perf_counter()
        forest = read_model(model)
        asked = (self.target, self.reduction)
        choice = choose(
            self.schedule, self.batch_sizes, forest, self.target, self.reduction
        )
        module = compiled(forest, choice, self.reduction, self.gpu_min_rows)
        found = None
        if isinstance(self.schedule, str) and self.schedule == "auto":
            searching = time.perf_counter()
            choice, found = self._search(Predictor(module, model), choice, X)
            start += time.perf_counter() - searching
            if found is not None:
                module = compiled(forest, choice, self.reduction, self.gpu_min_rows)
        crossover = None
        if isinstance(module, AutoModule):
            measured = self.gpu_min_rows is None and choice.gpu_min_rows is None
            if measured and self.tuning != "off":
                module.find_crossover()
            crossover = module.gpu_min_rows
        module.compile_all()
        seconds = time.perf_counter() - start
        predictor = Predictor(module, model)
        verify(predictor, X, tags_of(model, forest).input_tags.allow_nan)
        if isinstance(model, StoredModel):
            self._stored = model
            self.__dict__.pop("estimator_", None)
        else:
            self.estimator_ = model
            self.__dict__.pop("_stored", None)
        self.__dict__.pop("search_", None)
        if is_search(given):
            self.search_ = given
        self.forest_ = forest
        self.schedule_ = dict(module.schedules)
        self.target_ = self.fitted_target_ = module.target
        self._tables = choice.tables
        self.gpu_min_rows_ = crossover
        self.tuning_result_ = found
        self.compile_time_ = seconds
        self._asked = asked
        self._witness = predictor.witness
        before = self.__dict__.get("_predictor")
        self._predictor = predictor
        if before is not None:
            before.retire()
        return self

    def _search(
        self, predictor: Predictor, choice: Choice, X: Any
    ) -> tuple[Choice, TuningResult | None]:
        """Search schedules for the ranges asked for, on rows as kernels see them."""
        by_name = isinstance(self.tuning, str)
        if by_name and (
            self.tuning == "off"
            or (self.tuning_budget is None and tuning_seconds(1.0) == 0.0)
        ):
            return choice, None
        return searched(
            self.tuning,
            choice,
            predictor.forest,
            sample_rows(predictor, X, TUNING_ROWS),
            reduction=self.reduction,
            ranges=size_ranges(self.batch_sizes),
            n_jobs=self.n_jobs,
            budget=self.tuning_budget,
            random_state=self.random_state,
            verbose=int(self.verbose),
        )

    @offered("fit_predict")
    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and return what is an outlier: -1, and 1 for all others.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Not used.
        **fit_params : dict
            Passed to :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self.fit(X, **fit_params).predict(X)

    # ---------------------------------------------------------- predictions

    def _compiled(self) -> Predictor:
        """Return the predictor; it is compiled again after unpickling."""
        return self.__dict__.get("_predictor") or self._revive()

    @offered("predict", entry=True)
    def predict(self, X: Any, **params: Any) -> Any:
        """Return what the model's own ``predict`` returns, bit for bit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, in every form the model takes. C-contiguous arrays of
            ``forest_.input_dtype`` are fastest.
        **params : dict
            Other arguments of the model's ``predict``, such as ``iteration_range``
            of XGBoost. The model itself then answers.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Labels of a classifier, also where the model is a Booster or a file.
        """
        if params:
            return self._compiled().ask("predict", X, **params)
        return self._compiled().predict(X, self.n_jobs)

    @offered("predict_proba", entry=True)
    def predict_proba(self, X: Any, **params: Any) -> Any:
        """Return the probability of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        **params : dict
            Other arguments of the model's ``predict_proba``, which then answers.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or a list of them
            A list for scikit-learn models of several targets.
        """
        if params:
            return self._compiled().ask("predict_proba", X, **params)
        return self._compiled().predict_proba(X, self.n_jobs)

    @offered("predict_log_proba")
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or a list of them
            As :meth:`predict_proba`.
        """
        return self._compiled().predict_log_proba(X, self.n_jobs)

    @offered("decision_function", entry=True)
    def decision_function(self, X: Any) -> Any:
        """Return the model's own decision function.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
        """
        return self._compiled().decision_function(X, self.n_jobs)

    @offered("score_samples", entry=True)
    def score_samples(self, X: Any) -> Any:
        """Return the model's own scores of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._compiled().score_samples(X, self.n_jobs)

    @offered("apply")
    def apply(self, X: Any) -> Any:
        """Return the leaf that each row ends in, per tree, numbered by the source.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_trees)
            In the dtype of the source; (n_samples,) where the source drops an axis.
        """
        return self._compiled().apply(X, self.n_jobs)

    @offered("predict_raw", entry=True)
    def predict_raw(self, X: Any) -> Any:
        """Return raw scores: XGBoost's margins, averages of scikit-learn's forests.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the dtype in which the source sums.
        """
        return self._compiled().predict_raw(X, self.n_jobs)

    @offered("score")
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
        model = model_of(self)
        own = getattr(type(model), "score", None)
        if own is None or own.__module__ == "sklearn.base":
            measure = {True: accuracy_score, False: r2_score}[is_classifier(self)]
            return float(measure(y, self.predict(X), sample_weight=sample_weight))
        self._check_model()
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(model.score(X, y, **weights))

    def inspect(self, level: str, *, n_rows: int | None = None) -> str:
        """Return a level of the compilation as text.

        Parameters
        ----------
        level : str
            schedule, loops, hir, mir, lir, llvm or asm; cuda or ptx for a GPU.
        n_rows : int, default=None
            The batch size whose kernel is meant; None means the largest range.

        Returns
        -------
        str
        """
        return str(self._compiled().module.inspect(level, n_rows=n_rows))

    def warm_up(self, batch_sizes: ArrayLike | None = None) -> CompiledForest:
        """Compile now all that calls would compile when they first need it.

        For a service: no request then waits for the compiler. ``fit`` has compiled
        the sums for every batch size, but not ``apply``, nor the calls of few rows;
        what was loaded or unpickled has nothing.

        Parameters
        ----------
        batch_sizes : array-like of int, default=None
            Numbers of rows of the calls to come; None means any.

        Returns
        -------
        CompiledForest
            Itself. No call with these numbers of rows compiles from now on.

        Raises
        ------
        InvalidInputError
            If a size is no number of rows.

        Examples
        --------
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
        >>> CompiledForest(tree).fit([[0.0]]).warm_up([1]).predict([[1.0]])
        array([4.])
        """
        methods = [name for name in METHODS if hasattr(self, name)]
        self._compiled().warm_up(methods, batch_sizes, self.n_jobs)
        return self

    def drop_estimator(self) -> CompiledForest:
        """Return a copy that keeps the forest and not the model it was read from.

        The copy is smaller, and unpickles where the source library is not installed.
        Its predictions are the same; the class labels, the fitted attributes and the
        rules for rows are kept as plain data, as in a ``.skforge`` file.

        Returns
        -------
        CompiledForest
            Without ``estimator_``. What only the model could answer, such as further
            arguments of its ``predict``, raises ``SourceNeededError``.

        Raises
        ------
        UnsupportedModelError
            If rows of this model cannot be taken without it: categories of
            HistGradientBoosting, labels that are no plain values.
        """
        check_is_fitted(self)
        self._check_model()
        model = store(self, model_of(self), self.__sklearn_tags__())
        params = {**self.get_params(deep=False), "estimator": model}
        copy = type(self)(**params)
        kept = dict(self.__dict__)
        for name in (*params, "estimator_", "search_", "_predictor", "_witness"):
            kept.pop(name, None)
        copy.__dict__.update(kept, _stored=model)
        return copy

    # ------------------------------------------------------ the meta-estimator

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a compiled forest; a fitted model is not enough."""
        return "forest_" in self.__dict__

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the model."""
        return tags_of(unwrap(model_of(self)), self.__dict__.get("forest_"))

    def __getattr__(self, name: str) -> Any:
        """Return a fitted attribute of the model, such as ``classes_``."""
        state = self.__dict__
        fitted = name in FITTED or (name.endswith("_") and not name.startswith("__"))
        if fitted and "forest_" in state:
            model = model_of(self)
            if hasattr(model, name):
                self._check_model()
                return getattr(model, name)
            if not hasattr(model, "n_features_in_"):  # no estimator, nor kept from one
                found = attribute_of(state["forest_"], name)
                if found is not None:
                    return found
        if "_stored" in state:
            state["_stored"].explain(name)
        raise AttributeError(no_attribute(self, name))

    def _sk_visual_block_(self) -> Any:
        """Return what notebooks draw: the model, the target and the schedules."""
        return visual_block(self)

    def _html_repr(self) -> str:
        """Return the box that notebooks draw."""
        return html_of(self)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return where metadata goes: to the model's ``fit`` and ``score``.

        Returns
        -------
        MetadataRouter
        """
        mapping = MethodMapping().add(caller="fit", callee="fit")
        mapping = mapping.add(caller="score", callee="score")
        router = MetadataRouter(owner=type(self).__name__)
        if is_estimator(self.estimator):
            router.add(estimator=self.estimator, method_mapping=mapping)
        return router
