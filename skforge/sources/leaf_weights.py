"""Adapters for forests that make their answers of samples or curves in leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.forest.forest import Forest
from skforge.forest.leaf_payloads import LeafCurves, LeafSamples
from skforge.frontends.base import is_a
from skforge.frontends.sklearn import leaf_weights
from skforge.sources.base import register
from skforge.sources.sklearn import TreesSource
from skforge.sources.stored_model.model import StoredModel


class LeafSource(TreesSource):
    #: Methods that are answered with payloads.
    by_leaves: ClassVar[tuple[str, ...]]
    payload_type: ClassVar[type[LeafSamples | LeafCurves]]
    payload_of: Callable[[Any], LeafSamples | LeafCurves]
    #: Arguments of ``predict`` that ``fit`` compares, as each has its own arithmetic.
    queries: ClassVar[tuple[dict[str, Any], ...]] = ()

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self.facts = replace(self.facts, on_device=False)
        self.leaf_source = self

    #: What the leaves hold, as the model or its file has it.
    _payload: Callable[[], LeafSamples | LeafCurves]

    def take_live(self, model: Any) -> None:
        super().take_live(model)
        self._payload = partial(self.payload_of, model)

    def take_stored(self, stored: StoredModel) -> None:
        super().take_stored(stored)
        self._payload = partial(self.payload_type, **stored.leaves)

    @classmethod
    def detects(cls, model: Any) -> bool:
        return is_a(model, *cls.classes)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        return [*super().traces(model), vars(model).get("forest_")]

    @cached_property
    def payload(self) -> Any:
        """What the leaves hold; raises ValueError or TypeError if it was damaged."""
        payload = self._payload()
        payload.check(self.forest.n_leaves)
        return payload


@register
class QuantileSource(LeafSource):
    classes = (leaf_weights.QUANTILES,)
    kind = "quantile"
    by_leaves = ("predict",)
    payload_type, payload_of = LeafSamples, staticmethod(leaf_weights.samples_of)
    queries = (
        {"quantiles": "mean"},
        {"quantiles": [0.2, 0.5, 0.7]},
        {"quantiles": [0.2, 0.5, 0.7], "weighted_quantile": False},
        {"quantiles": [0.2, 0.5, 0.7], "weighted_leaves": True},
    )
    explains = False

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        return [*super().traces(model), model.max_samples_leaf]

    @property
    def default_quantiles(self) -> Any:
        return getattr(self.held, "default_quantiles", None)

    def _scores(self, rows: Array) -> Any:
        from sklearn.ensemble._forest import ForestRegressor

        return ForestRegressor.predict(self._serial(), rows)


@register
class SurvivalSource(LeafSource):
    classes = leaf_weights.SURVIVAL
    kind = "survival"
    by_leaves = ("predict", *leaf_weights.CURVES)
    payload_type, payload_of = LeafCurves, staticmethod(leaf_weights.curves_of)

    def _scores(self, rows: Array) -> Any:
        pair = rows if len(rows) > 1 else np.repeat(rows, 2, axis=0)
        return np.asarray(super()._scores(pair))[: len(rows)]

    def _outputs(self, X: Any) -> dict[str, Any]:
        outputs = super()._outputs(X)
        if self.payload.hazard is not None:
            serial = self._serial()
            for name in leaf_weights.CURVES:
                outputs[name] = getattr(serial, name)(X, return_array=True)
        return outputs
