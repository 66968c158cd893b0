"""State of a ``CompiledForest``: attributes, copies, pickles, recompilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sklearn.utils import Tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.validation import check_is_fitted

from skforge._version import FORMAT, __version__, check_format, check_release
from skforge.compiler.frontends.base import unwrap
from skforge.compiler.frontends.content import held
from skforge.compiler.runtime.auto import AutoModule
from skforge.compiler.runtime.schedules import ScheduleTable
from skforge.compiler.runtime.targets import resolve_target, stored_target
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.prediction.dispatch import Choice, compiled, rechosen
from skforge.prediction.fitting import FitResult
from skforge.prediction.kernel_checks import by_reference
from skforge.prediction.predictor import Predictor
from skforge.sources.delegation import (
    FITTED,
    attribute_of,
    is_estimator,
    model_of,
    no_attribute,
    start_of,
    tags_of,
)
from skforge.sources.find import Fingerprint, has_changed
from skforge.sources.store import store
from skforge.sources.stored_model import StoredModel

if TYPE_CHECKING:
    from typing_extensions import Self

    class MetaEstimatorMixin:
        """scikit-learn's own has no types: its heirs would have all attributes."""

    class BaseEstimator:
        """The public methods of scikit-learn's."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            raise NotImplementedError

        def set_params(self, **params: Any) -> Self:
            raise NotImplementedError

        def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
            raise NotImplementedError

        __getstate__: Callable[[], dict[str, Any]]
        __setstate__: Callable[[dict[str, Any]], None]

else:
    from sklearn.base import BaseEstimator, MetaEstimatorMixin


class CompiledState(BaseEstimator):
    """Keeps the forest, schedules and model; machine code is compiled on demand."""

    gpu_min_rows_: int | None
    schedule_: dict[BatchRange, Schedule]
    target_: Target

    def _keep(self, result: FitResult, model: Any, asked: tuple[Any, Any]) -> None:
        """Set the fitted attributes; the compiled methods of an earlier fit retire."""
        if isinstance(model, StoredModel):
            self._stored = model
            self.__dict__.pop("estimator_", None)
        else:
            self.estimator_ = model
            self.__dict__.pop("_stored", None)
        before, predictor = self.__dict__.get("_predictor"), result.predictor
        self.forest_, self._split = predictor.forest, result.split
        self._fallback = result.fallback
        self.schedule_ = ScheduleTable(predictor.module.schedules)
        self.target_ = self.fitted_target_ = predictor.module.target
        self._tables = result.choice.tables
        self.gpu_min_rows_ = result.gpu_min_rows
        self.tuning_result_ = result.search
        self.compile_time_ = result.seconds
        self._asked = asked
        self._fingerprint = predictor.fingerprint
        self._predictor = predictor
        if before is not None:
            before.retire()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without machine code."""
        state = dict(super().__getstate__())
        state.pop("_predictor", None)
        if state.pop("_fingerprint", None) is not None:
            self._check_model()
        state |= {"_skforge_version": __version__, "_skforge_format": FORMAT}
        return state

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; ``n_jobs`` drops entries. Open files are read now, once."""
        if name == "estimator":
            value = held(value)
        super().__setattr__(name, value)
        predictor = self.__dict__.get("_predictor")
        if name == "n_jobs" and predictor is not None:
            predictor.threads_change()
        if name in ("n_jobs", "gpu_min_rows"):
            for member in getattr(self.__dict__.get("_split"), "forests", ()):
                setattr(member, name, value)
        if name == "gpu_min_rows" and "forest_" in self.__dict__:
            self._move_crossover(value)

    def _move_crossover(self, rows: int | None) -> None:
        """Set the batch size from which the GPU is used."""
        predictor = self.__dict__.get("_predictor")
        if rows is None or self.gpu_min_rows_ is None:
            return
        self.gpu_min_rows_ = rows
        if predictor is not None and isinstance(predictor.module, AutoModule):
            predictor.module.gpu_min_rows = rows
            predictor.threads_change()
            self.schedule_ = ScheduleTable(predictor.module.schedules)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state; kernels compile on the first call, for this CPU."""
        state = dict(state)
        written = state.pop("_skforge_version", "unknown")
        form = state.pop("_skforge_format", 1)  # 0.1.0 stated none
        if "forest_" in state:
            check_format(form, written, "The pickle of a CompiledForest")
        check_release(written, "CompiledForest", "Fit")
        before = self.__dict__.pop("_predictor", None)
        if before is not None:  # the object was fitted before
            before.retire()
        super().__setstate__(state)
        if "forest_" in state:
            self._fingerprint = Fingerprint(model_of(self), start_of(self))
        here = self.__dict__.get("_asked", ("",))[0] in ("auto", "cpu")
        if here and not self.target_.is_gpu:
            self.target_ = Target.host()

    def _check_model(self) -> None:
        """Raise if the model is no longer the one that was compiled."""
        fingerprint = self.__dict__.get("_fingerprint")  # absent for a stored model
        if fingerprint is not None:
            fingerprint.check()
        search = self.__dict__.get("search_")
        if search is not None and unwrap(search) is not model_of(self):
            raise has_changed(search)

    def _without_source(self, tags: Tags) -> Any:
        """Return a copy that keeps the model as plain data."""
        model = store(self, model_of(self), tags)
        params = {**self.get_params(deep=False), "estimator": model}
        copy = type(self)(**params)
        state = dict(self.__dict__)
        for name in (*params, "estimator_", "search_", "_predictor", "_fingerprint"):
            state.pop(name, None)
        copy.__dict__.update(state, _stored=model)
        return copy

    def _revive(self) -> Predictor:
        """Compile again after unpickling; raise if never fitted."""
        check_is_fitted(self)
        self._check_model()
        forest, reduction = self.forest_.validate(), self._asked[1]
        if self._tables is not None:
            choice = rechosen(self._tables, forest, reduction)
        else:
            target = resolve_target(stored_target(self.target_))
            choice = Choice(target, self.schedule_)
        module = compiled(forest, choice, reduction, self.gpu_min_rows_)
        by_reference(module)
        self.target_, self.schedule_ = module.target, ScheduleTable(module.schedules)
        revived = Predictor(module, model_of(self), start_of(self))
        # threads that arrive together all use the first one's
        predictor: Predictor = self.__dict__.setdefault("_predictor", revived)
        return predictor


class Delegated(MetaEstimatorMixin, CompiledState):
    """Takes tags, fitted attributes and metadata routing from the model."""

    estimator: Any

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a compiled forest; a fitted model does not count."""
        return "forest_" in self.__dict__

    def __sklearn_tags__(self) -> Tags:
        return tags_of(unwrap(model_of(self)), self.__dict__.get("forest_"))

    if TYPE_CHECKING:  # what models have most often; estimator_ has the rest
        estimator_: Any
        search_: Any
        classes_: Any
        n_classes_: Any
        n_features_in_: int
        feature_names_in_: Any
        feature_importances_: Any
        n_outputs_: int
        estimators_: Any
        best_iteration: int
        best_score: Any

    else:

        def __getattr__(self, name: str) -> Any:
            """Return a fitted attribute of the model, such as ``classes_``."""
            state = self.__dict__
            fitted = name in FITTED or (
                name.endswith("_") and not name.startswith("__")
            )
            if fitted and "forest_" in state:
                model = model_of(self)
                if hasattr(model, name):
                    self._check_model()
                    return getattr(model, name)
                live = is_estimator(model)  # texts have no n_features_in_
                if not live and not hasattr(model, "n_features_in_"):  # nor stored
                    value = attribute_of(state["forest_"], name)
                    if value is not None:
                        return value
            if "_stored" in state:
                state["_stored"].explain(name)
            raise AttributeError(no_attribute(self, name))

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
