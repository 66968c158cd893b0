"""The adapter for forests that scikit-learn-intelex trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skforge.forest.forest import Forest
from skforge.frontends.checks import is_onedal
from skforge.frontends.sklearn import onedal
from skforge.rows import forms
from skforge.rows.frames import kind_of
from skforge.rows.known_forms import PassedOn
from skforge.rows.plain import Reading
from skforge.runtime.mappings import MappingColumns
from skforge.sources.base import Array, Source, register
from skforge.sources.sklearn import SklearnSource

_WIDE, _NARROW = np.dtype(np.float64), np.dtype(np.float32)
_LARGEST = float(np.finfo(_WIDE).max)
#: Columns of Polars and Arrow that the model makes float64 of.
_FLOATS = {"Float64", "Float32", "double", "float"}
#: The form of rows whose dtype in the model is not certain here.
_UNSURE = np.dtype(object)


@register
class OneDalSource(SklearnSource):
    """Rows of float32 are summed in float32, by a forest of their own; others are not.

    Classifiers sum one row of float32 otherwise than several, so all are the model's.
    Leaf numbers, sparse rows and missing values are those of scikit-learn's trees,
    which the model makes when they are asked for.
    """

    classes = (onedal.REGRESSOR, onedal.CLASSIFIER)
    kind = "onedal"
    explains = False
    #: Entries are to take arrays of the forest's own dtype alone.
    facts = replace(SklearnSource.facts, has_forms=True, limit=_LARGEST)
    _obeys_config = False

    def __init__(self, model: Any, forest: Forest, form: Any = None) -> None:
        super().__init__(model, forest)
        self.twins: dict[str, Source] = {}

    @classmethod
    def detects(cls, model: Any) -> bool:
        return super().detects(model) and is_onedal(model)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        trained = model._onedal_estimator
        return [trained, trained._onedal_model, *super().traces(model)]

    def form_of(self, X: Any) -> Any:
        form = _dtype_of(X)
        return None if form == self.forest.input_dtype else form

    def knows(self, form: Any) -> bool:
        return form is None

    def sample(self, dtype: Any) -> Any:
        narrow = dtype == _NARROW and self._has_twin
        return np.zeros((1, self.forest.n_features), dtype) if narrow else None

    def of_form(self, form: Any) -> Source | None:
        if form != _NARROW or not self._has_twin:
            return None
        twin: Source | None = self.origin.twin(self, form)
        return twin

    def twin_of_live(self, form: Any) -> Source:
        text = forms.form_text(form)
        if text not in self.twins:
            block = int(np.count_nonzero(self.forest.tree_output == 0))
            forest = onedal.forest_of(self.model, block, np.float32).validate()
            self.twins[text] = OneDalSource(self.model, forest)
        return self.twins[text]

    @property
    def _has_twin(self) -> bool:
        return self.forest.task == "regression"

    def reading(self) -> Reading:
        return self._reading()

    def passed_on(self, X: Any) -> PassedOn | None:
        """Leave forms that the model computes with in another dtype."""
        return None if self.form_of(X) is None else lambda X, rows: True

    def columns(self) -> MappingColumns | None:
        columns = super().columns()  # a frame tells of which dtype the values are
        return columns and replace(columns, by_frame=True)

    def _rows(self, X: Any, method: str) -> Any:
        return None if method == "apply" else self.taken(self.read(X))

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method != "predict_raw":
            return super()._call(method, X, **params)
        source = self.of_form(self.form(X)) or self
        return source.raw(np.asarray(X, source.forest.input_dtype))

    def _scores(self, rows: Array) -> Any:
        return self.reference(rows)


def _dtype_of(X: Any) -> np.dtype[Any]:
    """Return the dtype in which the model reads rows: float64, float32 or unsure.

    Only arrays and pandas frames of float32 stay that.
    """
    kind = kind_of(X)
    if X is None or isinstance(X, (list, tuple)):
        return _WIDE
    if kind in ("polars", "pyarrow"):
        types = X.schema.types if kind == "pyarrow" else X.dtypes
        return _WIDE if _FLOATS.issuperset(map(str, types)) else _UNSURE
    if not isinstance(X, np.ndarray) and kind != "pandas":
        return _UNSURE
    dtypes = [*X.dtypes] if kind == "pandas" else [X.dtype]
    if not dtypes or any(getattr(dtype, "kind", "O") not in "fiub" for dtype in dtypes):
        return _UNSURE
    plain = all(isinstance(dtype, np.dtype) for dtype in dtypes)
    both = np.result_type(*dtypes) if plain else _UNSURE
    return both if both in (_NARROW, _UNSURE) else _WIDE
