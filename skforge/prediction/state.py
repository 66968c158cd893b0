"""State of a ``CompiledForest``: attributes, copies, pickles, recompilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sklearn.utils import Tags
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter, MethodMapping

from skforge.frontends.base import unwrap
from skforge.prediction.answering import Answering
from skforge.prediction.delegation import tags_of
from skforge.prediction.revived import OF_A_FILE
from skforge.prediction.shadow import Shadow, shadow_state
from skforge.runtime.float_errors import own_arithmetic
from skforge.sources.fitted import is_estimator, model_of
from skforge.sources.stored_model.store import store

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


class CompiledState(Answering, BaseEstimator):
    """Keeps the forest, schedules and model; machine code is compiled on demand."""

    __sklearn_tags__: Callable[[], Tags]
    __metadata_request__predict_proba = {"out": UNUSED}  # noqa: RUF012

    def _keep(self, fitted: dict[str, Any], shadow: dict[str, Shadow]) -> None:
        """Become what ``fitting.make`` has made of a model."""
        before = self.__dict__.get("_predictor")
        for name in (*OF_A_FILE, "_shadow", "_stored", "estimator_", "search_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(fitted, **shadow)
        self._open_door(self._predictor)
        if before is not None:
            before.retire()

    @own_arithmetic
    def _without_source(self) -> Any:
        self._check_model()
        model = store(self, model_of(self), self.__sklearn_tags__())
        params = {**self.get_params(deep=False), "estimator": model}
        copy = type(self)(**params)
        state = dict(self.__dict__)
        own = "estimator_", "search_", "_predictor", "_fingerprint", "_shadow"
        for name in (*params, *own, *OF_A_FILE):
            state.pop(name, None)
        copy.__dict__.update(state, _stored=model, **shadow_state())
        return copy


#: Methods whose metadata goes to the model's method of the same name.
_ROUTED = (
    *("fit", "score", "predict", "predict_proba", "predict_log_proba"),
    *("decision_function", "transform"),
)


class Delegated(MetaEstimatorMixin, CompiledState):
    """Takes tags, fitted attributes and metadata routing from the model."""

    estimator: Any

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a compiled forest; a fitted model does not count."""
        return "forest_" in self.__dict__

    def __sklearn_tags__(self) -> Tags:
        return tags_of(unwrap(model_of(self)), self.__dict__.get("forest_"))

    def get_metadata_routing(self) -> MetadataRouter:
        """Return where metadata goes: to the model's method of the same name.

        Returns
        -------
        MetadataRouter
        """
        mapping = MethodMapping()
        for method in _ROUTED:
            mapping = mapping.add(caller=method, callee=method)
        router = MetadataRouter(owner=type(self).__name__)
        if is_estimator(self.estimator):
            router.add(estimator=self.estimator, method_mapping=mapping)
        return router
