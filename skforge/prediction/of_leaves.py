"""Answers made of what the leaves of a row hold: quantiles, and curves of survival."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.engine.leaves.samples import (
    INTERPOLATIONS,
    LeafQuantiles,
    QuantileQuery,
)
from skforge.engine.leaves.sums import PayloadSums
from skforge.exceptions import InvalidInputError, SourceNeededError
from skforge.forest.leaf_payloads import LeafSamples
from skforge.frontends.sklearn.leaf_weights import CURVES
from skforge.prediction.of_rows import OfRows, RowsRead

#: Numbers of leaves, or of points of curves, that a block of rows has at most.
_BLOCK = 1 << 20

#: Arguments that count only with ``oob_score``.
_UNUSED = "oob_score", "indices", "duplicates"


class LeafAnswers:
    """What a ``ForestPredictor`` asks where raw scores are not the answer."""

    def __init__(self, predictor: OfRows) -> None:
        self._predictor, self._source = predictor, predictor.source.leaf_source
        self._made: dict[str, Any] = {}

    def __call__(
        self, method: str, read: RowsRead, n_jobs: int | None, params: Mapping[str, Any]
    ) -> Any:
        """Return an answer for rows that were read; None if only the model has one."""
        predictor, rows = read.by, read.rows
        answer, width = (None, 0) if rows is None else self._answer(method, params)
        if answer is None:
            return None
        n = rows.shape[0]
        if method == "predict" and CURVES[0] in self._source.by_leaves and n > 1:
            return predictor.engine.run("raw", rows, n_jobs)
        n_rows = max(1, _BLOCK // max(1, predictor.forest.n_trees, width))
        out = None
        for first in range(0, n, n_rows):
            block = slice(first, first + n_rows)
            leaves = predictor.engine.run("leaf_rows", rows[block], n_jobs)
            part = answer(leaves, n_jobs)
            if len(part) == n:
                return part
            out = np.empty((n, *part.shape[1:])) if out is None else out
            out[block] = part
        return out

    def _answer(
        self, method: str, params: Mapping[str, Any]
    ) -> tuple[Callable[..., Array] | None, int]:
        """Return the function of leaves, and the most numbers of a row's answer."""
        payload, made = self._source.payload, self._made.get(method)
        if isinstance(payload, LeafSamples):
            query = self._query(**params)
            if query is None:
                return None, 0
            quantiles = self._made[method] = made or LeafQuantiles(payload)
            return lambda *leaves: _squeezed(quantiles(query, *leaves)), 1
        tables = payload.hazard, payload.survival, payload.risks
        table = tables[(*CURVES, "predict").index(method)]
        if {*params} - {"return_array"} or table is None:
            return None, 0
        sums = self._made[method] = made or PayloadSums(table)
        n_trees = self._predictor.forest.n_trees

        def mean(leaves: Any, n_jobs: int | None) -> Array:
            means = sums(leaves, n_jobs=n_jobs) / n_trees
            return means[:, 0] if method == "predict" else means

        return mean, table.shape[1]

    def _query(
        self, quantiles: Any = None, interpolation: Any = "linear", **params: Any
    ) -> QuantileQuery | None:
        known = {field.name for field in fields(QuantileQuery)}
        if params.get("oob_score") or {*params} - known - {*_UNUSED}:
            return None
        if quantiles is None:
            quantiles = self._source.default_quantiles
        listed = quantiles if isinstance(quantiles, list) else [quantiles]
        asked = _numbers(listed)
        if asked is None and not _is_mean(listed):
            error = InvalidInputError(
                "quantiles must be a number from 0 to 1, a list of them, or 'mean'. "
                f"Got {quantiles!r} instead."
            )
            if not listed:  # of none, the library may crash
                raise error
            self._source.origin.leave(error)
            return None
        if isinstance(interpolation, (bytes, bytearray)):
            interpolation = interpolation.decode()
        how = {name: bool(params[name]) for name in known & {*params}}
        query = QuantileQuery(asked, interpolation, **how)
        shares = query.weighted_quantile and query.weighted_leaves
        by_row = shares and not query.aggregate_leaves_first
        by_row = by_row and not self._source.payload.single
        return None if by_row or interpolation not in INTERPOLATIONS else query

    def step_functions(self, curves: Array) -> Array:
        """Return the library's objects for curves."""
        try:
            from sksurv.functions import StepFunction
        except ImportError as error:
            raise SourceNeededError(
                "StepFunction objects need scikit-survival, which is not installed; "
                "pass return_array=True, or install it."
            ) from error
        functions = np.empty(len(curves), np.object_)
        for i, curve in enumerate(curves):
            functions[i] = StepFunction(x=self._source.payload.times, y=curve)
        return functions

    def warm_up(self, batch_sizes: Any) -> None:
        module = self._predictor.module.parts[0]
        module.finder("row").warm_up(batch_sizes)
        leaves = np.zeros((1, module.forest.n_trees), np.int32)
        answers = (self._answer(method, {})[0] for method in self._source.by_leaves)
        for answer in filter(None, answers):
            answer(leaves, None)


def _squeezed(answer: Array) -> Array:
    """Drop the axes of one quantile and of one output."""
    answer = answer[:, :, 0] if answer.shape[2] == 1 else answer
    return np.ascontiguousarray(answer[:, 0] if answer.shape[1] == 1 else answer)


def _numbers(listed: list[Any]) -> tuple[float, ...] | None:
    if all(isinstance(q, (int, float)) and 0 <= q <= 1 for q in listed):
        return tuple(map(float, listed)) or None
    return None


def _is_mean(listed: list[Any]) -> bool:
    return len(listed) == 1 and (listed[0] is None or str(listed[0]) == "mean")
