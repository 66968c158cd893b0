"""The part of ``CompiledForest`` that scikit-learn asks about its model."""

from __future__ import annotations

from typing import Any

from sklearn.base import MetaEstimatorMixin
from sklearn.utils import Tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping

from skforge.compiler.frontends.base import unwrap
from skforge.prediction.state import CompiledState
from skforge.sources.delegation import (
    FITTED,
    attribute_of,
    is_estimator,
    model_of,
    no_attribute,
    tags_of,
)


class Delegated(MetaEstimatorMixin, CompiledState):  # type: ignore[misc]
    """Takes tags, fitted attributes and metadata routing from the model."""

    estimator: Any

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a compiled forest; a fitted model does not count."""
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
            live = is_estimator(model)  # texts have no n_features_in_
            if not live and not hasattr(model, "n_features_in_"):  # nor stored
                found = attribute_of(state["forest_"], name)
                if found is not None:
                    return found
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
