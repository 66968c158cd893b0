"""Adapter for a pipeline whose first steps run in their library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from sklearn.utils import get_tags

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.pipeline.split import flat_steps
from skforge.compiler.frontends.pipeline.transformers import (
    COLUMNS,
    class_of,
    first_step,
    is_absent,
    of_first,
)
from skforge.exceptions import UnsupportedModelError
from skforge.sources.base import Array, Source
from skforge.sources.mappings import ColumnRule, Columns
from skforge.sources.pipeline import held
from skforge.sources.plain import Read


class Prepared(NamedTuple):
    """Rows after the steps that run in their library."""

    rows: Any


class PrefixedSource(Source):
    """A fitted pipeline: its first steps, and the adapter of the rest.

    The forest is that of the rest. A batch is transformed as a whole, because rows of
    a part of it may differ in the last bit: BLAS has code for each size.
    """

    kinds = ()
    declines = None
    direct = False
    on_device = False

    def __init__(self, model: Any, forest: Forest, start: int, rest: Source) -> None:
        super().__init__(model, forest)
        self._before = flat_steps(model)[:-1]
        steps = [step for _, step in self._before[:start]]
        self._steps = [step for step in steps if not is_absent(step)]
        self._last, self.answers = rest, rest.answers
        self.fill = rest.fill

    def describe(self) -> NoReturn:
        """Raise: the steps before the forest are no plain data."""
        raise UnsupportedModelError(
            "Some steps of the pipeline run in their own library, and a .skforge file "
            "cannot store transformers; use joblib.dump, or save only the forest with "
            "skforge.save(fast.forest_, path) and give it rows that these steps have "
            "transformed."
        )

    def prepared(self, X: Any, method: str = "predict") -> Prepared:
        """Return rows after the first steps, transformed once for all further calls."""
        if type(X) is Prepared:
            return X
        rows = X
        try:
            for step in self._steps:
                rows = step.transform(rows)
        except Exception:
            # a wrapper around the pipeline may refuse X first
            getattr(self.model, method, self.model.predict)(X)
            raise
        return Prepared(rows)

    def takes(self, X: Array) -> bool:
        """Tell whether the rest accepts the values of these rows."""
        return self._last.takes(X)

    def columns(self) -> Columns | None:
        """Return the columns of the pipeline's frames; None if it knows no names."""
        names = of_first(self._before, "feature_names_in_")
        if names is None:
            found = None if self._steps else self._last.columns()
            return found and replace(found, by_frame=True)
        gaps: dict[Any, Any] = {}  # of texts, by name
        for step in held([step for _, step in self._before]):
            known = getattr(step, "categories_", None)
            objects = getattr(step, "_fit_dtype", None) == np.object_  # of an imputer
            for i, name in enumerate(getattr(step, "feature_names_in_", ())):
                if objects or (known is not None and known[i].dtype == np.object_):
                    none = known is not None and None in known[i].tolist()
                    gaps[name] = None if none else gaps.get(name, np.nan)
        rules = tuple(
            ColumnRule(str(name), i, {}, None, gap=gaps[name])
            if name in gaps
            else ColumnRule(str(name), i, {}, np.nan)
            for i, name in enumerate(names)
        )
        first = first_step(self._before)
        by_name = first is not None and class_of(first) == COLUMNS
        return Columns(rules, len(rules), ignores=by_name, by_frame=True)

    def read(self, X: Any) -> Read | None:
        """Read prepared rows as the rest reads them; leave all others."""
        return self._last.read(X.rows) if type(X) is Prepared else None

    def _rows(self, X: Any, method: str) -> Any:
        return self._last.rows(self.prepared(X).rows, method)

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        """Call the rest with prepared rows, and the pipeline with all others."""
        if type(X) is Prepared or method in ("predict_raw", "apply"):
            return self._last.call(method, self.prepared(X).rows, **params)
        return super()._call(method, X, **params)

    def drawn(self, n: int, missing: float) -> Array:
        """Return rows after the first steps, around the thresholds there."""
        known = self._last.model
        nan = hasattr(known, "fit") and get_tags(known).input_tags.allow_nan
        return self._last.drawn(n, 0.05 if nan else 0.0)

    def as_given(self, rows: Array) -> Prepared | None:
        """Return rows after the first steps as the rest takes them."""
        given = self._last.as_given(rows)
        return None if given is None else Prepared(given)

    def raw(self, rows: Array) -> Array:
        """Return the rest's raw scores of its own rows."""
        return self._last.raw(rows)

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return the rest's answers on one thread."""
        return self._last.outputs(self.prepared(X).rows)
