"""Prediction jobs: checked once by the caller, run by every worker on its blocks."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.compiler.forest.frames import is_category
from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.distributed._artifact import Artifact, KeepEstimator, Packable, pack
from skforge.exceptions import InvalidInputError
from skforge.prediction.answers import Answer, Array, as_array, described
from skforge.sources.row_spec import RowSpec, row_spec

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest


@dataclass(frozen=True, slots=True)
class Job:
    """A model's method and everything workers need to run it, as plain data."""

    artifact: Artifact
    method: str
    n_jobs: int | None
    answer: Answer
    rows: RowSpec

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Return the token for Dask, which is the same in every process."""
        return type(self).__name__, self.artifact.checksum, self.method, self.n_jobs

    def of_rows(self, rows: Any) -> Array:
        if not rows.shape[0]:
            return self.answer.empty()
        return as_array(getattr(loaded(self.artifact, self.n_jobs), self.method)(rows))

    def of_frame(self, frame: Any) -> Array:
        """Return the result for a frame whose columns are the features, in order."""
        if not len(frame):
            return self.answer.empty()
        return self.of_rows(self._framed(frame))

    def _framed(self, frame: Any) -> Any:
        """Return a pandas frame with the model's column names, numbers and categories.

        Without names, columns are numbered from 0, which no model checks. Texts become
        categories, or stay texts before the steps of a pipeline, with NaN for missing
        ones. A column without any value has lost its type, which the model tells.
        """
        from pandas import DataFrame

        given = [frame.iloc[:, place] for place in range(frame.shape[1])]
        columns = [self._taken(column, place) for place, column in enumerate(given)]
        names = self.rows.names
        labels = range(len(columns)) if names is None else names
        if all(map(operator.is_, columns, given)):
            return frame.set_axis(labels, axis=1)
        return DataFrame(dict(zip(labels, columns, strict=True)), index=frame.index)

    def _taken(self, column: Any, place: int) -> Any:
        """Return a column as models take it: numeric extension arrays as NumPy's."""
        from pandas import Categorical, Series
        from pandas.api.types import is_numeric_dtype

        if place in self.rows.hashed:
            return column
        dtype, index = column.dtype, column.index
        plain = isinstance(dtype, np.dtype)
        known = self.rows.categories.get(place)
        if known and column.first_valid_index() is None:
            return Series(Categorical([None] * len(column), list(known)), index=index)
        empty = dtype == np.object_ and column.first_valid_index() is None
        if self.rows.steps and (empty or _is_text(column)):  # of no type, or of texts
            texts = column.to_numpy(np.object_, na_value=np.nan)
            return Series(texts, index=index, dtype=np.object_)
        if is_category(dtype) or (plain and dtype.kind in "fiub"):
            return column
        if not plain and is_numeric_dtype(dtype):
            return column.astype("float64" if column.hasnans else dtype.numpy_dtype)
        if _is_text(column):
            if self.rows.by_value:
                return column.astype("category")
            raise InvalidInputError(
                f"The column {column.name!r} holds text, but the model has no category "
                "names; encode it as in training."
            )
        if dtype == np.object_ and all(map(_is_number, column.to_list())):
            return column.astype("float64")
        raise InvalidInputError(
            f"The column {column.name!r} has the dtype {dtype}, which holds neither "
            "numbers nor categories; convert it to float64."
        )

    def columns_of(
        self, there: Iterable[Any], wanted: Sequence[Any] | None
    ) -> list[Any]:
        """Return the feature columns in the model's order.

        These are ``wanted``, else the model's feature names, else all that are there.
        """
        if isinstance(wanted, str):
            raise InvalidInputError(
                f"columns must be a list of names. Got {wanted!r} instead; use "
                f"[{wanted!r}] for one column."
            )
        there = list(there)
        columns = list((self.rows.names or there) if wanted is None else wanted)
        missing = [name for name in columns if name not in there]
        if missing:
            raise InvalidInputError(
                f"The rows lack the columns {_listed(missing)}; they have "
                f"{_listed(there)}. Name the columns that are the model's features, "
                "in its order, with columns=[...]."
            )
        self.check_width(len(columns))
        return columns

    def check_width(self, n_columns: int) -> None:
        if n_columns != self.rows.width:
            raise InvalidInputError(
                f"The model was trained on {self.rows.width} features, but the rows "
                f"have {n_columns} columns."
            )


def job(
    model: Packable, method: str, n_jobs: int | None, keep_estimator: KeepEstimator
) -> Job:
    """Return a job after all checks that need no rows.

    Parameters
    ----------
    model : CompiledForest, Artifact or path
        A fitted model, a ``.skforge`` file, or an artifact from
        :func:`skforge.distributed.pack`.
    method : str, default="predict"
        The method of the model: ``predict``, ``predict_proba``, ``predict_log_proba``,
        ``predict_raw``, ``decision_function``, ``score_samples``, ``apply`` or
        ``predict_contribs``.
    keep_estimator : bool or "auto", default="auto"
        See :func:`skforge.distributed.pack`.
    """
    resolve_n_jobs(n_jobs)
    artifact = pack(model, keep_estimator=keep_estimator)
    here = loaded(artifact, n_jobs)
    return Job(artifact, method, n_jobs, described(here, method), row_spec(here))


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "none"


def _is_text(column: Any) -> bool:
    from pandas.api.types import infer_dtype, is_string_dtype

    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "O":
        return str(infer_dtype(column, skipna=True)) == "string"
    return bool(is_string_dtype(column.dtype))


def _is_number(value: Any) -> bool:
    from pandas import isna

    known = (bool, int, float, np.bool_, np.integer, np.floating)
    return value is None or bool(isna(value)) or isinstance(value, known)


# Each model is loaded once for all tasks: a worker gets the same artifact in every
# task, and finds the model by its checksum. Kernels are compiled with the first rows,
# for the CPU of this process.

#: Maximum models in the cache; the least recently used is evicted first.
MOST_MODELS = 16


@dataclass(slots=True)
class _Slot:
    """A cache entry; the first task that needs the model loads it."""

    checksum: str
    n_jobs: int | None
    lock: Any = field(default_factory=Lock)
    model: CompiledForest | None = None


_slot = lru_cache(maxsize=MOST_MODELS)(_Slot)


def loaded(artifact: Artifact, n_jobs: int | None) -> CompiledForest:
    """Return the model, one object per ``n_jobs`` for all threads: do not modify it."""
    slot = _slot(artifact.checksum, n_jobs)
    with slot.lock:  # only tasks of the same model wait
        if slot.model is None:
            model = artifact.load()
            model.n_jobs = n_jobs
            slot.model = model
        return slot.model


# A child's copies may have locks that a thread of its parent held.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_slot.cache_clear)
