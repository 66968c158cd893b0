"""Rows of model files and forests, which no library takes: skforge's own rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge.exceptions import InvalidInputError
from skforge.forest.forest import Forest
from skforge.frontends.checks import INSTEAD, refuse_arguments
from skforge.rows.known_forms import PassedOn
from skforge.rows.plain import Reading, has_limit
from skforge.rows.prepare import COMPARES
from skforge.rows.readers import RowReader, reader_of
from skforge.rows.sparse_rows import checked, is_sparse, value_of_absent
from skforge.runtime.mappings import MappingColumns
from skforge.sources.base import Answers, Array, Source, register
from skforge.sources.origins import FromFile


@register
class ForestSource(Source):
    """A file, a ``ModelProto`` or a ``Forest``, without a live model to call."""

    kind = "forest"
    staged = True
    answers = Answers(labels=False, leaf_dtype="<i4")
    origin_type = FromFile

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self.facts = replace(self.facts, fill=value_of_absent(forest))
        if forest.whole_columns:  # whose values are checked
            self.facts = replace(self.facts, on_device=False)
        if forest.row_norms:  # which compiled entries do not compute
            self.facts = replace(self.facts, declines=None)

    @classmethod
    def detects(cls, model: Any) -> bool:
        """Accept anything without ``fit``; Booster adapters are tried first."""
        return not hasattr(model, "fit")

    def takes(self, X: Array) -> bool:
        return self._whole is None or self._whole.takes(X)

    def takes_codes(self, rows: Array) -> bool:
        return not self.forest.row_norms and self.takes(rows)

    @cached_property
    def _whole(self) -> Any:
        if not self.forest.whole_columns:
            return None
        from skforge.rows.graph_rows import WholeNumbers

        return WholeNumbers(self.forest)

    def reading(self) -> Reading | None:
        """Read by position, or by equal names if the forest's library compares them."""
        forest = self.forest
        texts = forest.is_graph and any(forest.category_names)
        if texts or forest.row_norms or not np.isnan(forest.missing_value):
            return None
        return self._reading(
            names=forest.column_names,
            joins=forest.source == "xgboost",
            compares="equal" if self._compares_names else "never",
            estimator="",
            unseen=None if forest.source == "xgboost" else np.nan,
            through=np.float32 if forest.source == "lightgbm" else None,
        )

    @property
    def _compares_names(self) -> bool:
        return self.forest.source in COMPARES or self.forest.is_graph

    def codes(self) -> dict[int, dict[str, Any]]:
        if not self.forest.is_graph:
            return {}
        from skforge.rows.graph_rows import text_codes

        return {i: codes.named() for i, codes in text_codes(self.forest).items()}

    def columns(self) -> MappingColumns | None:
        columns = super().columns()
        if columns is None or not self.forest.is_graph:
            return columns
        from skforge.rows.graph_rows import mapping_rule, text_codes

        codes = text_codes(self.forest)
        rules = tuple(
            replace(rule, categories=None, **mapping_rule(codes[rule.place]))
            if rule.place in codes
            else rule
            for rule in columns.rules
        )
        return replace(
            columns, rules=rules, ignores=True, by_frame=bool(self.forest.row_norms)
        )

    def passed_on(self, X: Any) -> PassedOn | None:
        """Leave sparse rows with a number that LightGBM reads otherwise in arrays."""
        limited = self.forest.source == "lightgbm" and is_sparse(X)
        return has_limit if limited else None

    def _rows(self, X: Any, method: str) -> Any:
        if is_sparse(X) and not self._of_forest.on_host:
            return checked(self.forest, X)
        return self._of_forest.rows(X)

    @cached_property
    def _of_forest(self) -> RowReader:
        return reader_of(self.forest)

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        whose = "of a model read from a file"
        refuse_arguments(method, params.keys() & INSTEAD.keys(), f" {whose}")
        raise InvalidInputError(
            f"{method} {whose} takes only rows of numbers, without other arguments. "
            f"Got {', '.join(sorted(params)) or type(X).__name__}."
        )
