"""What is sent to workers: a model as bytes with a checksum, and a job.

Jobs are checked once by the caller, and run by every worker on its blocks.
"""

from __future__ import annotations

import copy
import hashlib
import operator
import os
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from skforge.engine.cpu.threads import resolve_n_jobs
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
    with_article,
)
from skforge.forest.arrays import dropped_name
from skforge.prediction.answers import Answer, Array, described
from skforge.rows.frames import is_category
from skforge.sources.row_facts import RowFacts
from skforge.sources.row_spec import row_spec

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

KeepEstimator: TypeAlias = bool | Literal["auto"]
#: What functions that predict take as the model.
Packable: TypeAlias = "CompiledForest | Artifact | str | os.PathLike[str]"

__all__ = ["Artifact", "KeepEstimator", "Packable", "pack"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A fitted ``CompiledForest`` as bytes without machine code; see :func:`pack`.

    Attributes
    ----------
    payload : bytes
        The bytes of a ``.skforge`` file, or a pickle.
    pickled : bool
        Whether it is a pickle, which holds the source model and needs its library.
    checksum : str
        Hexadecimal SHA-256 of the payload, by which workers identify the model.
    """

    payload: bytes
    pickled: bool
    checksum: str

    def __repr__(self) -> str:
        form = "pickle" if self.pickled else ".skforge"
        return f"<Artifact: {form}, {len(self.payload):,} bytes, {self.checksum[:12]}>"

    def __dask_tokenize__(self) -> str:
        """Return the token for Dask, which is the same in every process."""
        return self.checksum

    def load(self) -> CompiledForest:
        """Return the model; its kernels are compiled on first use.

        Raises
        ------
        InvalidModelError
            If the bytes are damaged.
        """
        from skforge.persistence.artifact import from_bytes

        if hashlib.sha256(self.payload).hexdigest() != self.checksum:
            raise InvalidModelError(
                f"The artifact {self.checksum[:12]} was damaged on its way to this "
                "process; send it again."
            )
        model: CompiledForest
        if self.pickled:
            model = pickle.loads(self.payload)
        else:
            model = from_bytes(self.payload, f"The artifact {self.checksum[:12]}")
        return model


def pack(model: Packable, *, keep_estimator: KeepEstimator = "auto") -> Artifact:
    """Pack a model into the bytes that are sent to workers.

    Every adapter packs its model. To reuse a packed model in several calls, pass the
    artifact instead.

    Parameters
    ----------
    model : CompiledForest, Artifact or path
        A fitted CompiledForest, a ``.skforge`` file that holds one, or an Artifact,
        which is returned unchanged.
    keep_estimator : bool or "auto", default="auto"
        Whether to include the source model in a pickle; workers then need its library.
        "auto" includes it only if the model cannot be saved without it, as for
        stacks and chains.

    Returns
    -------
    Artifact

    Raises
    ------
    UnsupportedModelError
        If ``keep_estimator=False`` and the model cannot take rows without its source.
    InvalidInputError
        If ``model`` has another type, or the file holds something else.
    sklearn.exceptions.NotFittedError
        If the CompiledForest is not fitted.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skforge import CompiledForest
    >>> from skforge.distributed import pack
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> artifact = pack(CompiledForest(tree).fit([[0.0]]))
    >>> artifact.pickled, artifact.load().predict([[1.0]])
    (False, array([4.]))
    """
    if isinstance(model, Artifact):
        return model
    from sklearn.utils.validation import check_is_fitted

    from skforge.estimators import CompiledForest
    from skforge.persistence.artifact import to_bytes
    from skforge.persistence.loading import load

    wrapper: Any = model
    got = type(wrapper).__name__
    if isinstance(model, (str, os.PathLike)):
        wrapper = load(model)
        got = f"{os.fspath(model)}, which holds {with_article(type(wrapper).__name__)},"
    if not isinstance(wrapper, CompiledForest):
        raise InvalidInputError(
            "model must be a fitted CompiledForest, or the path of a .skforge file "
            f"that holds one. Got {got} instead."
        )
    check_is_fitted(wrapper)
    lean = copy.copy(wrapper)  # without kernels and entries
    lean.tuning_result_ = None  # trials do not affect predictions
    if keep_estimator is not True:
        try:
            return _named(to_bytes(lean), False)
        except UnsupportedModelError:
            if keep_estimator is False:
                raise
    return _named(pickle.dumps(lean, protocol=5), True)


def _named(payload: bytes, pickled: bool) -> Artifact:
    return Artifact(payload, pickled, hashlib.sha256(payload).hexdigest())


# ------------------------------------------------------------ jobs


@dataclass(frozen=True, slots=True)
class Job:
    """A model's method and everything workers need to run it, as plain data."""

    artifact: Artifact
    method: str
    n_jobs: int | None
    answer: Answer
    rows: RowFacts

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Return the token for Dask, which is the same in every process."""
        return type(self).__name__, self.artifact.checksum, self.method, self.n_jobs

    def of_rows(self, rows: Any) -> Array:
        if not rows.shape[0]:
            return self.answer.empty()
        answer = getattr(loaded(self.artifact, self.n_jobs), self.method)(rows)
        return self.answer.shaped(answer, rows.shape[0])

    def of_frame(self, frame: Any, typed: bool = False) -> Array:
        """Return the result for a frame whose columns are the features, in order.

        ``typed`` tells that a column has the same dtype in every part of a table, and
        not float64 or objects in the parts with a null alone.
        """
        if not len(frame):
            return self.answer.empty()
        return self.of_rows(self._framed(frame, typed))

    def _framed(self, frame: Any, typed: bool) -> Any:
        """Return a pandas frame with the model's column names, numbers and categories.

        Without names, columns are numbered from 0, which no model checks. Texts become
        categories, or stay texts before the steps of a pipeline, with NaN for missing
        ones. A column without any value has lost its type, which the model tells.
        """
        from pandas import DataFrame

        names, places = self.rows.names, self._places
        if len(places) == frame.shape[1] < self.rows.width:
            for place in sorted({*range(self.rows.width)} - {*places}):
                frame = frame.copy(deep=False)
                frame.insert(place, dropped_name(place), 0.0)
        given = [frame.iloc[:, place] for place in range(frame.shape[1])]
        columns = [self._taken(column, i, typed) for i, column in enumerate(given)]
        labels = range(len(columns)) if names is None else names
        if all(map(operator.is_, columns, given)):
            return frame.set_axis(labels, axis=1)
        return DataFrame(dict(zip(labels, columns, strict=True)), index=frame.index)

    def _taken(self, column: Any, place: int, typed: bool) -> Any:
        """Return a column as models take it: numbers as NumPy's.

        Its dtype does not depend on the values in this part of a table.
        """
        from pandas import Categorical, Series

        if place in self.rows.hashed:
            return column
        dtype, index = column.dtype, column.index
        known = self.rows.categories.get(place)
        if known and not is_category(dtype) and not isinstance(known[0], str):
            return _as_categories(column, known, self.rows.index_dtypes.get(place))
        if known and column.first_valid_index() is None:
            return Series(Categorical([None] * len(column), list(known)), index=index)
        empty = dtype == np.object_ and column.first_valid_index() is None
        if self.rows.steps and (empty or _is_text(column)):  # of no type, or of texts
            texts = column.to_numpy(np.object_, na_value=np.nan)
            return Series(texts, index=index, dtype=np.object_)
        if is_category(dtype):
            return column
        if (number := _as_number(dtype, typed)) is not None:
            return column if number is dtype else column.astype(number)
        if _is_text(column):
            if known or (self.rows.by_value and not self.rows.categories):
                return column.astype("category")
            why = "but the model has no category names; encode it as in training."
            why = f"and {self.rows.unread}" if self.rows.unread else why
            raise InvalidInputError(f"The column {column.name!r} holds text, {why}")
        if dtype == np.object_ and all(map(_is_number, column.to_list())):
            return column.astype("float64")
        raise InvalidInputError(
            f"The column {column.name!r} has the dtype {dtype}, which holds neither "
            "numbers nor categories; convert it to float64."
        )

    @property
    def _places(self) -> Sequence[int]:
        """The columns that rows by name need: not those that the model drops."""
        unnamed = self.rows.steps and self.rows.names is None
        used = None if unnamed else self.rows.used
        return range(self.rows.width) if used is None else sorted(used)

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
        names = self.rows.names
        own = there if names is None else [names[place] for place in self._places]
        columns = list(own if wanted is None else wanted)
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
        if n_columns not in (self.rows.width, len(self._places)):
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


#: pandas' dtypes of numbers that may be missing, by the type of categories.
_NULLABLE = {"bool": "boolean", "float": "float64", "int": "Int64"}


def _as_categories(column: Any, known: Sequence[Any], index: str | None) -> Any:
    """Return a column of numbers as categories, of an index of NumPy's dtype."""
    from pandas import Categorical, Index, Series

    dtype = _NULLABLE[type(known[0]).__name__]
    if index is not None:
        dtype = index.replace("int", "Int").replace("u", "U")
    if column.first_valid_index() is None:
        none = Categorical([None] * len(column), Index([*known], dtype=dtype))
        return Series(none, index=column.index)
    with suppress(TypeError, ValueError):  # others, which the model does not know
        column = column.astype(dtype)
    return column.astype("category")


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "none"


def _as_number(dtype: Any, typed: bool) -> Any:
    """Return the dtype in which models take numbers; None for other columns."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if isinstance(dtype, np.dtype):
        if dtype.kind in "iub" and not typed:
            return np.dtype(np.float64)
        return dtype if dtype.kind in "fiub" else None
    if not is_numeric_dtype(dtype) and not is_bool_dtype(dtype):
        return None
    return np.float32 if dtype.numpy_dtype == np.float32 else np.float64


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
