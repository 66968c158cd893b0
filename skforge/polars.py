"""Predict in Polars, as an expression of columns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._compat import no_warnings
from skforge.exceptions import (
    InvalidInputError,
    VerificationError,
    shortened,
    with_article,
)
from skforge.frontends.base import is_compiled
from skforge.persistence.loading import load
from skforge.prediction.answers import METHODS, Answer, Array, described
from skforge.prediction.differences import difference
from skforge.sources.fitted import is_compared
from skforge.sources.row_facts import RowFacts
from skforge.sources.row_spec import row_spec

if TYPE_CHECKING:
    import polars as pl

    from skforge.estimators import CompiledForest

__all__ = ["predict"]

#: Rows of an expression's first batch that are compared.
_COMPARED = 32


def predict(
    model: CompiledForest | str | os.PathLike[str],
    *columns: str | pl.Expr,
    method: str = "predict",
) -> pl.Expr:
    """Return an expression that predicts rows, in eager, lazy and streaming queries.

    Parameters
    ----------
    model : CompiledForest or path
        A fitted model, or a ``.skforge`` file, which a process loads once.
    *columns : str or polars.Expr
        The features, by the names of training: their order has no meaning, and others
        are ignored. By position if the model knows no names; a column of the type
        ``Array`` may then have them all. None: the columns that the model needs.
    method : str, default="predict"
        ``predict``, ``predict_proba``, ``predict_log_proba``, ``predict_raw``,
        ``decision_function``, ``score_samples``, ``apply`` or ``predict_contribs``.

    Returns
    -------
    polars.Expr
        Of the type of the model's answers, named ``prediction`` or, by ``method``,
        ``raw``, ``probability`` and so on. Several values of a row are a struct with
        the fields ``probability_<class>``, ``prediction_0`` and so on. It is
        elementwise, but for models whose steps may need all rows at once.

    Raises
    ------
    InvalidInputError
        If the model lacks the method or the names. When the query runs: if it takes no
        such columns. They are read as those of a mapping, and nulls are missing values.

    Examples
    --------
    >>> import pytest; pl = pytest.importorskip("polars")
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skforge import CompiledForest
    >>> from skforge.polars import predict
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> fast = CompiledForest(tree, tuning="off").fit([[0.0]])
    >>> pl.DataFrame({"x": [0.0, 1.0]}).with_columns(predict(fast, "x")).rows()
    [(0.0, 3.0), (1.0, 4.0)]
    """
    import polars as pl

    fast: Any = model
    if isinstance(model, (str, os.PathLike)):
        path, facts = os.path.abspath(model), os.stat(model)
        fast = _loaded(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if not is_compiled(fast) or not hasattr(fast, "forest_"):
        raise InvalidInputError(
            "model must be a fitted CompiledForest, or the path of a .skforge file "
            f"that holds one. Got {with_article(type(fast).__name__)} instead."
        )
    answer, rows = described(fast, method), row_spec(fast)
    if not columns and rows.names is None:
        raise InvalidInputError(
            "The model was trained without feature names; pass the columns of its "
            f"{rows.width} features, in the order of training."
        )
    if rows.names is None and rows.underscores and (rows.categories or rows.unread):
        raise InvalidInputError(
            "The model takes categories by name, and the columns of its training frame "
            "have no names but LightGBM's own (Column_0, …); train it on a frame whose "
            "columns have others."
        )
    predictor = _Predictor(fast, method, answer, rows)
    return (
        pl.struct(*(columns or rows.needed))
        .map_batches(
            predictor,
            return_dtype=predictor.series(answer.empty()).dtype,
            is_elementwise=not rows.whole,
        )
        .alias(METHODS[method])
    )


@lru_cache(maxsize=16)
def _loaded(path: str, *facts: int) -> CompiledForest:
    """Return a file's model; ``facts`` differ for another file in its place."""
    return load(path)


@dataclass(frozen=True, eq=False)
class _Predictor:
    """What Polars calls with a batch of rows."""

    model: Any
    method: str
    answer: Answer
    rows: RowFacts
    #: Whether rows were not compared yet: not empty until they are.
    unmet: list[bool] = field(default_factory=lambda: [True])

    def __call__(self, rows: pl.Series) -> pl.Series:
        if not len(rows):
            return self.series(self.answer.empty())
        frame: Any = rows.struct.unnest()
        if (names := self.rows.names) is None:
            frame = _array(frame, self.rows)
        else:
            frame = {name: frame[name] for name in names if name in frame.columns}
        answer = getattr(self.model, self.method)(frame)
        shaped = self.answer.shaped(answer, len(rows))
        if self.unmet and is_compared(self.model):  # files need no pandas
            self.meet(rows, shaped)
            self.unmet.clear()
        return self.series(shaped)

    def meet(self, rows: pl.Series, answer: Array) -> None:
        """Compare the first rows with the answers to pandas' frame of them.

        Raise VerificationError if a bit differs, or if the model refuses dates. Other
        frames that it refuses, such as one with texts where training had categories,
        tell nothing.
        """
        first = rows.head(_COMPARED).struct.unnest()
        dates = [column for column in first if column.dtype.is_temporal()]
        known = all(_is_plain(t) or t.is_temporal() for t in first.dtypes)
        if not find_spec("pandas") or not known:
            return
        try:
            with no_warnings():
                frame: Any = first.to_pandas()
                if self.rows.names is None:
                    frame = frame.to_numpy(object if dates else np.float64)
                else:
                    frame = frame[[n for n in self.rows.names if n in frame.columns]]
                expected = getattr(self.model, self.method)(frame)
        except Exception as error:  # of any library
            if not dates:
                return
            raise VerificationError(
                f"{self.method} takes the column {dates[0].name!r} of the type "
                f"{dates[0].dtype}, and the model itself refuses it: "
                f"{shortened(str(error), 300)}. Please report this."
            ) from error
        expected = self.answer.shaped(expected, len(first))
        if found := difference(answer[: len(first)], expected):
            raise VerificationError(
                f"row {found.rows[0]}: {self.method} of Polars' columns gives "
                f"{found.value}, and of pandas' frame of them {found.expected}. Please "
                "report this, and use the model's own method until it is fixed."
            )

    def series(self, answer: Array) -> pl.Series:
        import polars as pl

        text = answer.dtype.kind in "UO"
        dtype = pl.String() if text else pl.Series(answer[:0].ravel()).dtype
        schema = dict.fromkeys(self.answer.names, dtype)
        frame = pl.DataFrame(answer, schema, orient="row")
        return frame.to_series() if self.answer.width is None else frame.to_struct()


def _is_plain(dtype: pl.DataType) -> bool:
    """Tell whether pandas has such columns as they are: numbers, booleans and texts."""
    import polars as pl

    return dtype.is_numeric() or dtype in (pl.Boolean, pl.String)


def _array(frame: pl.DataFrame, spec: RowFacts) -> Array:
    """Return columns without names as an array, whose dtype no value decides.

    Polars' own array of a frame has the columns' common type, and another one if a null
    is among them: a row's answer would depend on the rows beside it.
    """
    import polars as pl

    first = frame.to_series()
    if isinstance(first.dtype, pl.Array) and frame.width == 1:
        if first.dtype.inner in (pl.Float32, pl.Float64):
            return first.to_numpy()
        names = [f"{first.name}[{i}]" for i in range(first.dtype.shape[0])]
        frame = first.arr.to_struct(names).struct.unnest()
    objects = [_is_object(column, i, spec) for i, column in enumerate(frame)]
    if not any(objects):
        return frame.cast(pl.Float64).to_numpy()
    rows = np.empty(frame.shape, object)
    for i, column in enumerate(frame):
        cells: Any = column.to_list() if objects[i] else column.cast(pl.Float64)
        rows[:, i] = cells
    return rows


def _is_object(column: pl.Series, place: int, spec: RowFacts) -> bool:
    """Tell whether the model takes a column's own values, and not float64."""
    import polars as pl

    if place in spec.hashed:
        return True
    if column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        return False
    texts = spec.whole or place in spec.texts
    if texts and column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return True
    raise InvalidInputError(
        f"the column {column.name!r} has the type {column.dtype}, and the model takes "
        "numbers there; pass the numbers that training had in its place."
    )
