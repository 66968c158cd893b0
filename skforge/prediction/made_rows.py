"""Rows made of a caller's rows, in the same form, on which readers are likely to err.

Numbers lie on a column's thresholds and one step beside them, as the column's dtype and
float32 round them; labels are the caller's, in other places. Odd rows follow: missing
values of the form's own kind, zeros of both signs, infinities, large whole numbers and
labels that are not known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest
from skforge.rows.forms import arrow_column
from skforge.rows.frames import (
    is_category,
    kind_of,
    labels_of,
    number_of,
    objects_in,
    table_columns,
    types_of,
)

#: How many rows have ordinary values: more of few columns. Others have odd ones.
_LEAST, _MOST, _CELLS = 24, 192, 2048
#: Of wider rows, some columns get values, and others keep the caller's.
_MOST_COLUMNS = 256
#: Thresholds that are looked through: sorting 12 million takes 3 s.
_MOST_CUTS = 1 << 16
_UNKNOWN = "no such label"
_LABEL_GAP = "label gap", "label gap"  # one row alone may be read otherwise
#: Groups of odd rows of which a model takes all or none.
_ODD = (
    ("zero", "-zero", "large"),
    ("gap", "gaps"),
    _LABEL_GAP,
    ("inf", "-inf", "larger"),
)
#: Labels that are not known are in rows of their own: some models refuse a whole frame.
_NEW = ("unknown", "unknowns")
#: What the types of columns of texts and categories are called.
_LABELS = "string", "large_string", "utf8", "categorical", "enum", "dictionary"


class Made(NamedTuple):
    """Rows in the form of others, and the ends of parts that a model may refuse."""

    rows: Any
    ends: tuple[int, ...]


class Known(NamedTuple):
    """What a model knows of a column: its thresholds, its labels, and rows' values."""

    cuts: Array = np.empty(0)
    labels: tuple[Any, ...] = ()
    walked: Array = np.empty(0)  # of rows that reach a node; NaN where any will do


#: Returns what is known of a column of the caller's rows, by its place.
Knows = Callable[[int], Known]


def known_columns(forest: Forest, labels: Mapping[int, tuple[Any, ...]]) -> Any:
    """Return what is known of each column that trees test, or that has labels."""
    numbers = (forest.comparison < Comparison.IN) & np.isfinite(forest.threshold)
    tests = np.flatnonzero(numbers)
    tests = tests[:: 1 + len(tests) // _MOST_CUTS]
    tests = tests[np.argsort(forest.feature[tests], kind="stable")]
    features, first = np.unique(forest.feature[tests], return_index=True)
    cuts = np.split(forest.threshold[tests].astype(np.float64), first[1:])
    found = dict(zip(features.tolist(), cuts, strict=False))  # of none, one empty part
    for i in np.unique(forest.feature[forest.comparison >= Comparison.IN]).tolist():
        found.setdefault(i, np.arange(8.0))  # categories by number
    walked = _walked(forest, found)
    none = Known()
    return {
        i: Known(found.get(i, none.cuts), labels.get(i, ()), walked.get(i, none.cuts))
        for i in {**found, **labels}
    }


def _walked(forest: Forest, cuts: Mapping[int, Array]) -> dict[int, Array]:
    """Return columns of rows that reach a node, and have its threshold there.

    Rows at random thresholds reach few nodes of deep trees, and a value that is rounded
    matters only at a node that is reached. Sets of categories are passed at random.
    """
    random = np.random.default_rng(0)
    walked: dict[int, Array] = {}
    for row in range(_MOST if forest.n_trees else 0):
        node = int(forest.tree_offset[random.integers(forest.n_trees)])
        path = []
        while (test := int(forest.predicate[node])) >= 0:
            goes_left = bool(random.integers(2))
            path.append((test, goes_left))
            node = int((forest.left if goes_left else forest.right)[node])
        if path:
            path = path[: 1 + random.integers(len(path))]
            for feature, value in _reaching(forest, path, cuts, random).items():
                walked.setdefault(feature, np.full(_MOST, np.nan))[row] = value
    return walked


def _reaching(
    forest: Forest, path: Sequence[tuple[int, bool]], cuts: Any, random: Any
) -> dict[int, float]:
    ends: dict[int, list[float]] = {}
    for test, goes_left in path:
        how, feature = int(forest.comparison[test]), int(forest.feature[test])
        if how < Comparison.EQ:  # others leave no range
            below = goes_left == (how in (Comparison.LT, Comparison.LE))
            ends.setdefault(feature, [-np.inf, np.inf])[below] = forest.threshold[test]
    values = {}
    for feature, (least, most) in ends.items():
        known = cuts.get(feature, np.empty(0))  # none if gaps alone are told apart
        inside = known[(known > least) & (known < most)]
        some = inside if len(inside) else np.array([least, most])
        some = some[np.isfinite(some)]
        if len(some):  # gaps may be apart from all numbers
            values[feature] = some[random.integers(len(some))]
    if how < Comparison.IN and np.isfinite(forest.threshold[test]):
        values[feature] = float(forest.threshold[test])
    return values


@dataclass(frozen=True)
class _Column:
    own: list[Any]  # the caller's values, None where they are missing
    known: Known
    number: Any = None  # the dtype of numbers; None for labels, dates and the like
    labels: tuple[Any, ...] = ()  # that the column's type knows, or the model
    gap: Any = None  # a missing value
    has_gaps: bool = True  # whether the column's type can have one
    is_object: bool = False  # whether it may be None, too
    is_taken: bool = False  # whether values are those of the caller, by their places
    unknown: Any = _UNKNOWN

    def ordinary(self, n: int, random: np.random.Generator) -> list[Any]:
        if self.number is None:
            known = [*self.labels, *self.own] or [self.gap]
            return [known[i] for i in random.integers(0, len(known), n)]
        cuts, _, walked = self.known
        base = cuts if len(cuts) else self._finite() or [0.0, 1.0]
        values = np.asarray(base, np.float64)[random.integers(0, len(base), n)]
        if len(walked):
            values = np.where(np.isnan(walked[:n]), values, walked[:n])
        toward = np.array([-np.inf, np.inf])[random.integers(0, 2, n)]
        kind, number = random.integers(0, 4, n), np.dtype(self.number)
        with np.errstate(all="ignore"):
            if number.kind == "b":
                return [bool(odd) for odd in random.integers(0, 2, n)]
            if number.kind in "iu":
                whole = np.rint(np.clip(np.floor(values) + kind - 1, *_ends(number)))
                return [int(value) for value in whole]
            ways: list[Array] = []
            for dtype in (number, np.dtype(np.float32)):
                own = values.astype(dtype)
                beside = np.nextafter(own, toward.astype(dtype))
                ways += [own.astype(number), beside.astype(number)]
            made = np.choose(kind, ways)
        return [x.item() if np.isfinite(x) else 0.0 for x in made]

    def _finite(self) -> list[float]:
        values = [x for x in self.own if x is not None]
        return [float(x) for x in values if np.isfinite(float(x))]

    def odd(self, kind: str, place: int) -> Any:
        """Return an odd value; of some kinds, only every other column has one."""
        known = [value for value in self.own if value is not None]
        ordinary = known[0] if known else self.gap if self.number is None else 0
        if self.has_gaps and self.number is not None and kind == "gaps":
            return None if self.is_object else self.gap
        if self.has_gaps and self.number is not None and kind == "gap" and place % 2:
            return self.gap
        if self.number is None:
            if kind == "label gap":
                return self.gap
            new = kind == "unknowns" or (kind == "unknown" and place % 2)
            return self.unknown if new else ordinary
        number = np.dtype(self.number)
        if number.kind == "b":
            return bool(place % 2) if kind in ("zero", "large") else bool(ordinary)
        if number.kind in "iu":
            least, most = (int(end) for end in _ends(number))
            large = {"large": min(most, 2**24 + 1), "larger": min(most, 2**53 + 1)}
            return {"zero": 0, "-inf": least, "inf": most, **large}.get(kind, ordinary)
        top = float(np.finfo(number).max)
        beyond = min(2.0**24 + 1, top)
        values = {"zero": 0.0, "-zero": -0.0, "large": beyond, "larger": top}
        if kind.endswith("inf"):
            return float(kind) if place % 2 else ordinary
        return values.get(kind, ordinary)


def _ends(number: np.dtype[Any]) -> tuple[float, float]:
    ends = np.iinfo(number)
    return float(max(ends.min, -(2**53))), float(min(ends.max, 2**53))


def made_rows(
    X: Any, known: Mapping[int, Known], names: Sequence[Any] | None
) -> list[Made]:
    """Return rows in the form of ``X``, and rows with labels that are not known.

    ``known`` is what a model knows of the columns that training had, with ``names``.
    None are made for forms that are not known to this module, and for rows without
    columns.
    """
    maker = _MAKERS.get(kind_of(X)) or _maker_of(X)
    knows = _placed(X, known, names)
    wide = getattr(X, "shape", (0, 0))[-1] > _MOST_COLUMNS
    parts = None
    if maker is not None:
        parts = _of_wide(X, knows) if wide else maker(X, knows)
    if parts is None:
        return []
    columns, make = parts
    n = min(_MOST, max(_LEAST, _CELLS // max(1, len(columns))))
    random = np.random.default_rng(len(columns))
    labelled = any(column.number is None for column in columns)
    groups = [group for group in _ODD if labelled or group != _LABEL_GAP]
    kinds = [*itertools.chain(*groups)]
    cells = [
        [*column.ordinary(n, random), *(column.odd(kind, i) for kind in kinds)]
        for i, column in enumerate(columns)
    ]
    ends = tuple(itertools.accumulate(map(len, groups), initial=n))[1:]
    made = [Made(make(cells), ends)]
    if isinstance(X, list) or hasattr(X, "tocsr"):  # a part is read as another dtype,
        parts = itertools.pairwise((0, *ends))  # or has its entries in another order
        made = [Made(make([c[i:j] for c in cells]), (j - i,)) for i, j in parts]
    if any(c.number is None and c.unknown is not None for c in columns):
        new = [[c.odd(kind, i) for kind in _NEW] for i, c in enumerate(columns)]
        made.append(Made(make(new), (len(_NEW),)))
    return made


def _placed(X: Any, known: Mapping[int, Known], names: Any) -> Knows:
    """Return what tells of a column of the caller's rows what training's has."""
    labels = None if isinstance(X, (list, dict)) else labels_of(X)
    if isinstance(X, dict):
        labels = list(X)
    elif isinstance(X, list) and X and isinstance(X[0], Mapping):
        labels = list(X[0])
    places: dict[Any, int] = {}
    if labels is not None and names is not None:
        trained = {str(name): place for place, name in enumerate(names)}
        places = {i: trained.get(str(name), -1) for i, name in enumerate(labels)}
        if {*places.values()} == {-1}:
            places = {}
    none = Known()
    return lambda i: known.get(places.get(i, i), none)


def _of_wide(X: Any, knows: Knows) -> Any:
    """Make values of some columns of numbers; the others keep those of a row."""
    frame = kind_of(X) == "pandas"
    if frame and len(set(X.dtypes.tolist())) > 1:
        return None
    rows = X.to_numpy() if frame else X
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiub":
        return None
    tested = [i for i in range(rows.shape[1]) if len(knows(i).cuts)]
    every = tested or range(rows.shape[1])
    some = np.linspace(0, len(every) - 1, min(len(every), _MOST_COLUMNS)).astype(int)
    places = np.asarray(every)[some]
    columns, make = _of_array(rows[:, places], lambda i: knows(int(places[i])))

    def make_wide(parts: list[Any]) -> Any:
        made = np.repeat(rows[:1], len(parts[0]), axis=0)
        made[:, places] = make(parts)
        return type(X)(made, columns=X.columns) if frame else made

    return columns, make_wide


# ------------------------------------------------------------ arrays, lists, matrices


def _maker_of(X: Any) -> Any:
    if hasattr(X, "tocsr") and hasattr(X, "toarray"):  # one class of these is a dict
        return _of_sparse
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return _of_array
    if isinstance(X, list) and X and isinstance(X[0], Mapping):
        return _of_dicts
    if isinstance(X, list) and X and isinstance(X[0], (list, tuple)):
        return _of_lists
    return _of_dict if isinstance(X, dict) else None


def _of_array(X: Array, knows: Knows) -> Any:
    if type(X) not in (np.ndarray, np.memmap) or X.dtype.kind not in "fiubO":
        return None
    if X.dtype.kind == "O":
        columns = [_of_objects(X[:, i].tolist(), knows(i)) for i in range(X.shape[1])]
        return columns, lambda parts: _objects(parts)
    dtype, floats = X.dtype, X.dtype.kind == "f"
    columns = [
        _Column(X[:, i].tolist(), knows(i), dtype, gap=np.nan, has_gaps=floats)
        for i in range(X.shape[1])
    ]
    order: Any = "F" if X.flags.f_contiguous and not X.flags.c_contiguous else "C"

    def make(parts: list[Any]) -> Any:
        with np.errstate(all="ignore"):
            return np.array(parts, dtype).T.copy(order).view(type(X))

    return columns, make


def _objects(parts: list[Any]) -> Array:
    rows = np.empty((len(parts[0]), len(parts)), object)
    for i, part in enumerate(parts):
        rows[:, i] = part
    return rows


def _of_objects(own: list[Any], known: Known) -> _Column:
    """Return a column of Python's values: one of numbers, if it holds nothing else."""
    types = {*map(type, own)} - {type(None)}
    if types and all(issubclass(kind, (int, float, np.number)) for kind in types):
        whole = all(issubclass(kind, (int, np.integer)) for kind in types)
        if {*types} <= {bool, np.bool_}:
            number: Any = np.bool_
        else:
            number = np.int64 if whole and not len(known.cuts) else np.float64
        gap = np.nan if number == np.float64 else None
        return _Column(own, known, number, gap=gap, is_object=True)
    return _Column(own, known, labels=known.labels)


def _of_lists(X: list[Any], knows: Knows) -> Any:
    if len({*map(len, X)}) > 1 or len(X[0]) > _MOST_COLUMNS:
        return None
    columns = [_of_objects([row[i] for row in X], knows(i)) for i in range(len(X[0]))]
    kind = type(X[0])
    return columns, lambda parts: [*map(kind, zip(*parts, strict=True))]


def _of_dicts(X: list[Any], knows: Knows) -> Any:
    keys = list(X[0])
    if any(list(row) != keys for row in X) or len(keys) > _MOST_COLUMNS:
        return None
    columns = [_of_objects([row[k] for row in X], knows(i)) for i, k in enumerate(keys)]
    return columns, lambda parts: [
        dict(zip(keys, row, strict=True)) for row in zip(*parts, strict=True)
    ]


def _of_dict(X: dict[Any, Any], knows: Knows) -> Any:
    columns = [
        [*v][:_LEAST]
        for v in X.values()
        if isinstance(v, Iterable) and not isinstance(v, (str, bytes))
    ]
    if columns and len(columns) < len(X):
        return None
    rows = zip(*columns, strict=True) if columns else [X.values()]
    return _of_dicts([dict(zip(X, row, strict=True)) for row in rows], knows)


def _of_sparse(X: Any, knows: Knows) -> Any:
    if X.dtype.kind not in "fiu" or X.ndim != 2:
        return None
    rows = X[:8].toarray() if X.format == "csr" else X.tocsr()[:8].toarray()
    columns, _ = _of_array(np.asarray(rows), knows)

    def make(parts: list[Any]) -> Any:
        from scipy import sparse  # type: ignore[import-untyped, unused-ignore]

        with np.errstate(all="ignore"):
            dense = np.array(parts, X.dtype).T
        for i, row in enumerate(dense):  # each column is absent in some row
            row[i % len(row) :: 3] = 0
        made = sparse.csr_matrix(dense)
        if made.nnz:
            made.data[0] = 0  # an entry that is there and zero
        made = type(X)(made.asformat(X.format))
        if made.format in ("csr", "csc"):  # entries in descending order
            for name in ("indices", "indptr"):
                setattr(made, name, getattr(made, name).astype(getattr(X, name).dtype))
            for start, end in itertools.pairwise(made.indptr):
                made.indices[start:end] = made.indices[start:end][::-1].copy()
                made.data[start:end] = made.data[start:end][::-1].copy()
            made.has_sorted_indices = False
        return made

    return columns, make


# ------------------------------------------------------------ frames and tables


def _of_pandas(X: Any, knows: Knows) -> Any:
    import pandas as pd

    dtypes = X.dtypes.tolist()
    columns = [
        _of_series(X.iloc[:, i], dtype, knows(i)) for i, dtype in enumerate(dtypes)
    ]

    def make(parts: list[Any]) -> Any:
        if all(isinstance(d, np.dtype) and d.kind in "fiub" for d in dtypes) and (
            len({*map(str, dtypes)}) == 1
        ):
            with np.errstate(all="ignore"):
                return pd.DataFrame(np.array(parts, dtypes[0]).T, columns=X.columns)
        pairs = enumerate(zip(parts, dtypes, strict=True))
        made = {i: _series(part, dtype) for i, (part, dtype) in pairs}
        return pd.DataFrame(made).set_axis(X.columns, axis=1)

    return columns, make


def _of_series(series: Any, dtype: Any, known: Known) -> _Column:
    objects, gaps = series.astype(object).tolist(), series.isna().tolist()
    own = [None if gap else x for x, gap in zip(objects, gaps, strict=True)]
    subtype = getattr(dtype, "subtype", None)
    number = subtype if type(dtype).__name__ == "SparseDtype" else number_of(dtype)
    plain = isinstance(dtype, np.dtype) and dtype.kind != "O"
    if plain and dtype.kind in "fiu":  # of any order of bytes
        number = dtype.newbyteorder("=")
    if number is not None and not (isinstance(dtype, np.dtype) and dtype.kind == "M"):
        number = np.dtype(number)
        gap = np.nan if plain or subtype is not None else None
        has_gaps = gap is None or number.kind == "f"
        return _Column(own, known, number, gap=gap, has_gaps=has_gaps)
    if is_category(dtype):
        labels = tuple(dtype.categories.tolist())
        texts = labels and all(isinstance(label, str) for label in labels)
        new = _UNKNOWN if texts else None
        return _Column(own, known, labels=labels, unknown=new)
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return _of_objects(own, known)
    return _of_labels(own, known, _holds_texts(dtype))


def _of_labels(own: list[Any], known: Known, texts: bool) -> _Column:
    """Return a column of labels; one of texts takes those that the model knows."""
    labels = tuple(label for label in known.labels if texts and isinstance(label, str))
    return _Column(own, known, labels=labels, unknown=_UNKNOWN if texts else None)


def _holds_texts(dtype: Any) -> bool:
    return "str" in str(dtype).lower()


def _series(values: list[Any], dtype: Any) -> Any:
    import pandas as pd

    if is_category(dtype):
        known = dtype.categories
        if not dtype.ordered:  # other categories, in other order
            known = [*known[::-1], *([_UNKNOWN] if _UNKNOWN in values else [])]
        index = pd.Index(known, dtype=dtype.categories.dtype)
        return pd.Series(pd.Categorical(values, index, dtype.ordered))
    if isinstance(dtype, np.dtype) and dtype.kind in "fiubO":
        with np.errstate(all="ignore"):
            return pd.Series(np.array(values, dtype), dtype=dtype)
    if type(dtype).__name__ == "SparseDtype":
        return pd.Series(pd.arrays.SparseArray(values, dtype=dtype))
    return pd.Series(pd.array(values, dtype=dtype))


def _of_polars(X: Any, knows: Knows) -> Any:
    import polars as pl

    columns, dtypes = _of_types(X, knows), X.dtypes

    def series(i: int, part: list[Any]) -> Any:
        if columns[i].is_taken:
            return X.to_series(i).gather(part)
        return pl.Series(part, dtype=dtypes[i], strict=False)

    def make(parts: list[Any]) -> Any:
        pairs = enumerate(zip(X.columns, parts, strict=True))
        return pl.DataFrame({name: series(i, part) for i, (name, part) in pairs})

    return columns, make


def _of_arrow(X: Any, knows: Knows) -> Any:
    import pyarrow as pa

    columns, schema = _of_types(X, knows), X.schema

    def make(parts: list[Any]) -> Any:
        triples = enumerate(zip(parts, schema.types, columns, strict=True))
        arrays = [
            X.column(i).take(pa.array(part, pa.int64()))
            if column.is_taken
            else arrow_column(part, kind)
            for i, (part, kind, column) in triples
        ]
        return type(X).from_arrays(arrays, schema=schema)

    return columns, make


def _of_types(X: Any, knows: Knows) -> list[_Column]:
    pairs = enumerate(zip(table_columns(X), types_of(X), strict=True))
    return [_of_typed(objects_in(part), dtype, knows(i)) for i, (part, dtype) in pairs]


def _of_typed(own: list[Any], dtype: Any, known: Known) -> _Column:
    number, text = number_of(dtype), str(dtype)
    if number is not None:
        return _Column(own, known, number)
    if not text.lower().startswith(_LABELS):  # dates, lists and the like
        places = [*range(len(own))]
        return _Column(places, Known(), gap=0, unknown=None, is_taken=True)
    open_ended = *_LABELS[:4], "dictionary<values=string"
    return _of_labels(own, known, text.lower().startswith(open_ended))


_MAKERS: dict[str, Callable[[Any, Knows], Any]] = {
    "pandas": _of_pandas,
    "polars": _of_polars,
    "pyarrow": _of_arrow,
    "batch": _of_arrow,
    "csr": _of_sparse,
}
