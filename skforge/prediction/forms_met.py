"""Forms of rows: container, dtype of each column, names and their order, layout.

Rows of one form are read by the same code, so a form is compared with the model once;
see :mod:`skforge.prediction.door`. What a form leaves out varies in the rows that are
made for the comparison: types of Python's objects, categories and their order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.rows.frames import (
    is_category,
    is_pandas,
    kind_of,
    labels_of,
    same_labels,
    types_of,
)
from skforge.rows.known_forms import ReadForm

#: Forms of one method and class of rows that are told apart; later ones are taken for
#: the last one, as their differences have shown nothing in so many comparisons.
MOST_FORMS = 256


class KnownForm(NamedTuple):
    """How further rows of a form are answered, which a method was asked for."""

    same: Callable[[Any], bool]  # recognises its rows
    read: ReadForm | None
    entry: Callable[[Array], Any] | None  # None: other routes are to answer
    warning: str = ""
    #: Counts calls, if further rows may show that an entry takes this form.
    calls: Iterator[int] | None = None


class Question(NamedTuple):
    """What is asked of rows: ``ours`` of compiled code, ``theirs`` of the model.

    ``method`` may be any name of what these compute. ``later`` is how calls after the
    first compute it; None, also as its answer: as the first.
    """

    predictor: Any
    method: Any
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    later: Callable[[Any], Any] | None = None


class FormsMet:
    """The forms of rows that one method was asked for, and whether they agreed."""

    def __init__(self) -> None:
        self._agreed: dict[Hashable, bool] = {}
        #: By class of rows, what its last form looked like, and whether it agreed.
        self._last: dict[type, tuple[Any, bool]] = {}

    def __len__(self) -> int:
        return len(self._agreed)

    def agreed(self, X: Any) -> bool | None:
        """Tell whether rows like these agreed with the model; None if never met."""
        kind = type(X)
        last = self._last.get(kind)
        same = _SAME.get(kind_of(X), _same)
        if last is not None and same(last[0], X):
            return last[1]
        agreed = self._agreed.get(form_of(X))
        if agreed is None and len(self._agreed) >= MOST_FORMS:
            agreed = True
        if agreed is not None:
            self._last[kind] = look_of(X), agreed
        return agreed

    def add(self, X: Any, agreed: bool) -> None:
        self._agreed[form_of(X)] = agreed
        self._last[type(X)] = look_of(X), agreed


def recogniser(X: Any) -> Callable[[Any], bool]:
    """Return what recognises rows of the form of these."""
    return partial(_SAME.get(kind_of(X), _same), look_of(X))


def form_of(X: Any) -> Hashable:
    """Return what tells the form of rows from others, as a value."""
    form: Callable[[Any], Hashable] = _FORMS.get(kind_of(X), _of_other)
    return type(X), form(X)


def look_of(X: Any) -> Any:
    """Return what the next rows of this form are recognised by, in a microsecond."""
    return _LOOKS.get(kind_of(X), _of_other)(X)


def _same(look: Any, X: Any) -> bool:
    return bool(look == _of_other(X))


def _of_other(X: Any) -> Any:
    """Return the form of arrays, sparse matrices, frames of rare classes, lists."""
    if isinstance(X, (list, tuple)):
        return type(X[0]) if X else None
    dtype = getattr(X, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return None if not is_pandas(X) else _of_pandas(X)
    indices = getattr(getattr(X, "indices", None), "dtype", None)
    return dtype if dtype.kind not in "SUV" else dtype.kind, len(X.shape), indices


# ------------------------------------------------------------ pandas


def _dtype_form(dtype: Any) -> Hashable:
    if is_category(dtype):  # comparisons have other categories, too
        return "category", str(dtype.categories.dtype), bool(dtype.ordered)
    return str(dtype)


def _of_pandas(X: Any) -> Hashable:
    labels = X.columns
    names = tuple(zip(labels.tolist(), map(type, labels.tolist()), strict=True))
    dtypes = X.dtypes.tolist()
    # texts of dtypes take 1 us each; equal categories may be of different dtypes
    forms = {key: _dtype_form(d) for key, d in {id(d): d for d in dtypes}.items()}
    return names, tuple(forms[id(dtype)] for dtype in dtypes)


def _look_of_pandas(X: Any) -> Any:
    manager = X._mgr
    blocks = manager.blocks
    dtypes = [block.values.dtype for block in blocks]
    lie = [block._mgr_locs for block in blocks]
    return manager.axes[0], dtypes, lie, _places(manager)


def _places(manager: Any) -> Any:
    """Return in which block each column lies, and where in it."""
    return manager.blknos.tobytes(), manager.blklocs.tobytes()


def _same_pandas(look: Any, X: Any) -> bool:
    labels, dtypes, lie, places = look
    manager = X._mgr
    blocks = manager.blocks
    if len(blocks) != len(dtypes):
        return False
    # a block's own dtype is found anew for each frame
    found = [block.values.dtype for block in blocks]
    if not all([a is b or _alike(a, b) for a, b in zip(found, dtypes, strict=True)]):
        return False
    if len(blocks) > 1:
        known = all(map(is_, [block._mgr_locs for block in blocks], lie))
        if not known and _places(manager) != places:
            return False
    names = manager.axes[0]  # whose comparison takes longest
    if names is labels or names.is_(labels):
        return True
    # not left to ``same_labels`` alone, by which readers go, too
    return bool(names.dtype == labels.dtype) and same_labels(names, labels)


def _alike(dtype: Any, other: Any) -> bool:
    if type(dtype) is not type(other):
        return False
    if getattr(dtype, "_metadata", None) == ():  # pandas' class of one dtype alone
        return True
    if is_category(dtype):
        own, others = dtype.categories, other.categories
        alike = own is others or own.dtype == others.dtype
        return bool(alike and dtype.ordered == other.ordered)
    return bool(dtype == other)


# ------------------------------------------------------------ polars and pyarrow


def _of_table(X: Any) -> Hashable:
    return tuple(labels_of(X)), tuple(map(str, types_of(X)))


def _look_of_polars(X: Any) -> Any:
    dtypes = X.dtypes
    # comparing dtypes takes longer than their classes, which tell all of most
    tell = [isinstance(t, type) or getattr(t, "__dict__", True) for t in dtypes]
    more = [(i, dtypes[i]) for i in range(len(dtypes)) if tell[i]]
    return X.columns, [*map(type, dtypes)], more


def _same_polars(look: Any, X: Any) -> bool:
    names, classes, more = look
    dtypes = X.dtypes
    if X.columns != names or [*map(type, dtypes)] != classes:
        return False
    return all(dtypes[i] == dtype for i, dtype in more)


def _look_of_arrow(X: Any) -> Any:
    return X.schema


def _same_arrow(look: Any, X: Any) -> bool:
    return bool(X.schema.equals(look))


# ------------------------------------------------------------ sparse rows


def _look_of_csr(X: Any) -> Any:
    return X.data.dtype, X.indices.dtype


def _same_csr(look: Any, X: Any) -> bool:
    return bool(X.data.dtype == look[0] and X.indices.dtype == look[1])


_FORMS: dict[str, Callable[[Any], Hashable]] = {
    "pandas": _of_pandas,
    **dict.fromkeys(("polars", "pyarrow", "batch"), _of_table),
}
_LOOKS: dict[str, Callable[[Any], Any]] = {
    "pandas": _look_of_pandas,
    "polars": _look_of_polars,
    "pyarrow": _look_of_arrow,
    "batch": _look_of_arrow,
    "csr": _look_of_csr,
}
_SAME: dict[str, Callable[[Any, Any], bool]] = {
    "pandas": _same_pandas,
    "polars": _same_polars,
    "pyarrow": _same_arrow,
    "batch": _same_arrow,
    "csr": _same_csr,
}
