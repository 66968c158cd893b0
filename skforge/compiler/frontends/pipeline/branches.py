"""A ColumnTransformer of which only some transformers fold.

Each of the others is a step of its own, which adds its outputs to the rows as further
columns; a copy of the ColumnTransformer passes these on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from skforge.compiler.forest.frames import kind_of
from skforge.compiler.frontends.base import class_name
from skforge.compiler.frontends.pipeline import transformers
from skforge.exceptions import UnsupportedModelError

StepList = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    #: The ColumnTransformer as it was, in a copy: the steps are kept for as long as it.
    whole: Any
    transformer: Any
    columns: Any  # as ``whole`` chooses them: labels or places, a single one for 1-D
    read: frozenset[str] | None  # the names of frames that it takes; None: arrays
    width: int  # the columns of arrays
    names: tuple[str, ...]  # of the further columns

    def transform(self, X: Any) -> Any:
        """Return rows with the outputs behind; None for rows of other kinds."""
        from sklearn.utils import _safe_indexing

        if self.read is None:
            plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2
            if not plain or X.shape[1] != self.width:
                return None
        elif kind_of(X) != "pandas" or not X.columns.is_unique:
            return None
        else:
            names = frozenset(X.columns)
            known = self.read <= names and names.isdisjoint(self.names)
            if not known or {*map(type, names)} != {str}:
                return None
        out = self.transformer.transform(_safe_indexing(X, self.columns, axis=1))
        if hasattr(out, "tocsr") and not self.whole.sparse_output_:
            out = out.toarray()
        shape = len(X), len(self.names)
        if getattr(out, "shape", None) != shape:
            return None
        if self.read is None:
            whole = type(out) is np.ndarray and out.dtype == np.float64
            return np.hstack([X, out]) if whole else None
        return _beside(X, out, self.names)


def _beside(X: Any, out: Any, names: Sequence[str]) -> Any:
    from pandas import DataFrame, concat

    if type(out) is np.ndarray:
        dtypes = [out.dtype]
        columns = DataFrame(out, index=X.index, columns=names)
    elif kind_of(out) == "pandas":
        dtypes = [*out.dtypes]
        columns = out.set_axis(X.index, axis=0).set_axis(names, axis=1)
    else:
        return None
    known = all(isinstance(d, np.dtype) and d.kind in "fiu" for d in dtypes)
    return concat([X, columns], axis=1) if known else None


#: By ColumnTransformer: the ids of its transformers, and the steps that it makes.
_known: WeakKeyDictionary[Any, tuple[list[int], StepList]] = WeakKeyDictionary()


def branched(name: str, step: Any) -> StepList:
    if class_name(step) != transformers.COLUMNS or not _is_plain(step):
        return [(name, step)]
    ids = [id(child) for _, child, _ in step.transformers_]
    known = _known.get(step)
    if known is None or known[0] != ids:
        known = _known[step] = ids, _branched(name, step)
    steps = known[1]
    return [*steps[:-1], (name, steps[-1][1])] if steps else [(name, step)]


def _is_plain(step: Any) -> bool:
    from sklearn.utils._set_output import _get_output_config

    default = _get_output_config("transform", step)["dense"] == "default"
    is_fitted = hasattr(step, "transformers_") and hasattr(step, "output_indices_")
    return default and step.transformer_weights is None and is_fitted


def _folds(name: str, child: Any) -> bool:
    with suppress(UnsupportedModelError):
        transformers.refuse_members(name, child)
        return True
    return False


def _branched(name: str, step: Any) -> StepList:
    from sklearn.preprocessing import FunctionTransformer

    indices, names = dict(step._transformer_to_input_indices), None
    known = getattr(step, "feature_names_in_", None)
    rest, fitted, width = copy.copy(step), [], int(step.n_features_in_)
    kept = {
        child_name: (child, columns)
        for child_name, child, columns in step.transformers_
        if not isinstance(child, str) and len(indices[child_name])
    }
    chosen = [each for each, (child, _) in kept.items() if not _folds(each, child)]
    if not chosen or len(chosen) == len(kept):
        return []
    places = step.output_indices_
    if any(places[each].stop == places[each].start for each in chosen):
        return []  # what has no columns still widens the dtype of the others
    used = [i for n, t, _ in step.transformers_ if t != "drop" for i in indices[n]]
    names = None if known is None else frozenset(known[used])
    passing = FunctionTransformer(accept_sparse=True, check_inverse=False)
    whole, steps = copy.copy(step), []
    more: list[str] = []
    for child_name, child, columns in step.transformers_:
        if child_name not in chosen:
            fitted.append((child_name, child, columns))
            continue
        if known is not None:
            labels = known[indices[child_name]]
            columns = labels[0] if np.isscalar(columns) else labels
        n_new = places[child_name].stop - places[child_name].start
        new = tuple(f"{child_name}\0{i}" for i in range(n_new))
        branch = Branch(whole, child, columns, names, width, new)
        steps.append((f"{name}__{child_name}", branch))
        indices[child_name] = [*range(width, width + len(new))]
        fitted.append((child_name, passing, indices[child_name]))
        width += len(new)
        more += new
    rest.transformers_, rest._transformer_to_input_indices = fitted, indices
    rest.transformers = [
        (each, passing if each in chosen else child, columns)
        for each, child, columns in step.transformers
    ]
    rest.remainder = passing if "remainder" in chosen else step.remainder
    rest.n_features_in_ = width
    if known is not None:
        rest.feature_names_in_ = np.array([*known, *more], object)
    return [*steps, (name, rest)]


def unbranched(steps: StepList) -> list[Any]:
    """Return transformers in turn; of a ColumnTransformer in parts, the whole."""
    found: list[Any] = []
    for _, step in steps:
        branch = found[-1] if found and isinstance(found[-1], Branch) else None
        if branch is None or isinstance(step, Branch):
            found.append(step)
            continue
        while found and isinstance(found[-1], Branch):
            found.pop()
        found.append(branch.whole)
    return found
