"""Adapters for forests that make their answers of samples or curves in leaves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.leaf_payloads import LeafCurves, LeafSamples
from skforge.compiler.frontends.sklearn.leaf_weights import (
    CURVES,
    QUANTILES,
    SURVIVAL,
    curves_of,
    samples_of,
)
from skforge.sources.base import Source, register
from skforge.sources.sklearn import TreesSource


class LeafSource(TreesSource):
    """A forest with payloads in its leaves; live, or kept as arrays."""

    #: Methods that are answered with payloads.
    by_leaves: ClassVar[tuple[str, ...]] = ()
    payload_type: ClassVar[type[LeafSamples | LeafCurves]]
    #: Parameters that ``predict`` reads.
    params: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self.on_device = False
        self.leaf_source = self

    @classmethod
    def detects(cls, model: Any) -> bool:
        return Source.detects.__func__(cls, model)  # type: ignore[attr-defined]

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        return [*super().traces(model), vars(model).get("forest_")]

    @cached_property
    def payload(self) -> Any:
        if self.stored is None:
            return self.payload_of(self.model)
        payload = self.payload_type(**self.stored.leaves["payload"])
        payload.check(self.forest.n_leaves)
        return payload

    @classmethod
    def payload_of(cls, model: Any) -> Any:
        raise NotImplementedError

    def check_payload(self) -> None:
        """Raise ValueError or TypeError unless what is kept fits the forest."""
        if self.payload is None:
            raise ValueError("the leaves hold nothing")

    def param(self, name: str) -> Any:
        held = self.stored
        return (
            getattr(self.model, name) if held is None else held.leaves["params"][name]
        )

    def kept_payload(self) -> dict[str, Any]:
        names = [part.name for part in fields(self.payload_type)]
        return {
            "params": {name: self.param(name) for name in self.params},
            "payload": {name: getattr(self.payload, name) for name in names},
        }


@register
class QuantileSource(LeafSource):
    classes = (QUANTILES,)
    kind = "quantile"
    by_leaves = ("predict",)
    payload_type = LeafSamples
    params = ("default_quantiles",)
    explains = False

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        return [*super().traces(model), model.max_samples_leaf]

    @classmethod
    def payload_of(cls, model: Any) -> LeafSamples:
        return samples_of(model)

    def _scores(self, rows: Array) -> Any:
        from sklearn.ensemble._forest import ForestRegressor

        return ForestRegressor.predict(self._serial(), rows)


@register
class SurvivalSource(LeafSource):
    classes = SURVIVAL
    kind = "survival"
    by_leaves = ("predict", *CURVES)
    payload_type = LeafCurves

    @classmethod
    def payload_of(cls, model: Any) -> LeafCurves:
        return curves_of(model)

    def _scores(self, rows: Array) -> Any:
        pair = rows if len(rows) > 1 else np.repeat(rows, 2, axis=0)
        return np.asarray(super()._scores(pair))[: len(rows)]

    def _outputs(self, X: Any) -> dict[str, Any]:
        outputs = super()._outputs(X)
        if self.payload.hazard is not None:
            serial = self._serial()
            for name in CURVES:
                outputs[name] = getattr(serial, name)(X, return_array=True)
        return outputs
