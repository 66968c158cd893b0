"""Rows made of a caller's rows, in the same form, on which readers are likely to err.

Numbers lie on a column's thresholds and one step beside them, as the column's dtype and
float32 round them; labels are the caller's, in other places. Odd rows follow: missing
values of the form's own kind, zeros of both signs, infinities, large whole numbers and
labels that are not known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.frames import is_category, kind_of, labels_of, number_of

#: How many rows have ordinary values: more of few columns. Others have odd ones.
_LEAST, _MOST, _CELLS = 24, 192, 2048
#: Wider frames of several dtypes take too long to make.
_MOST_COLUMNS = 512
_UNKNOWN = "no such label"
#: Groups of odd rows of which a model takes all or none.
_ODD = (("zero", "-zero", "large"), ("gap", "gaps"), ("inf", "-inf", "larger"))
_ENDS = tuple(itertools.accumulate(map(len, _ODD)))
#: Labels that are not known are in rows of their own: some models refuse a whole frame.
_NEW = ("unknown", "unknowns")

Maker = Callable[[list[Any]], Any]


class Made(NamedTuple):
    """Rows in the form of others, and the ends of parts that a model may refuse."""

    rows: Any
    ends: tuple[int, ...]


def cuts_of(forest: Forest) -> dict[int, Array]:
    """Return the finite thresholds of each column that has some, as float64."""
    tests = (forest.comparison < Comparison.IN) & np.isfinite(forest.threshold)
    features, cuts = forest.feature[tests], forest.threshold[tests].astype(np.float64)
    found = {int(i): np.unique(cuts[features == i]) for i in np.unique(features)}
    for i in np.unique(forest.feature[forest.comparison >= Comparison.IN]).tolist():
        found.setdefault(i, np.arange(8.0))  # categories by number
    return found


@dataclass(frozen=True)
class _Column:
    own: list[Any]  # the caller's values, None where they are missing
    cuts: Array  # thresholds; empty if none is known
    number: Any = None  # the dtype of numbers; None for labels, dates and the like
    labels: tuple[Any, ...] = ()  # that the column's type knows, or the model
    gap: Any = None  # a missing value
    has_gaps: bool = True  # whether the column's type can have one
    is_object: bool = False  # whether it may be None, too
    unknown: Any = _UNKNOWN

    def ordinary(self, n: int, random: np.random.Generator) -> list[Any]:
        if self.number is None:
            known = [*self.labels, *self.own] or [self.gap]
            return [known[i] for i in random.integers(0, len(known), n)]
        base = self.cuts if len(self.cuts) else self._finite() or [0.0, 1.0]
        values = np.asarray(base, np.float64)[random.integers(0, len(base), n)]
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
        if self.has_gaps and kind == "gaps":
            return None if self.is_object else self.gap
        if self.has_gaps and kind == "gap" and place % 2:
            return self.gap
        if self.number is None:
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
        values = {"zero": 0.0, "-zero": -0.0, "large": 2.0**24 + 1, "larger": top}
        if kind.endswith("inf"):
            return float(kind) if place % 2 else ordinary
        return values.get(kind, ordinary)


def _ends(number: np.dtype[Any]) -> tuple[float, float]:
    ends = np.iinfo(number)
    return float(max(ends.min, -(2**53))), float(min(ends.max, 2**53))


def made_rows(
    X: Any, cuts: Mapping[int, Array], names: Sequence[Any] | None
) -> list[Made]:
    """Return rows in the form of ``X``, and rows with labels that are not known.

    ``cuts`` are the thresholds of the columns that training had, with ``names``. None
    are made for forms that are not known to this module, and for rows without columns.
    """
    maker = _MAKERS.get(kind_of(X)) or _maker_of(X)
    parts = None if maker is None else maker(X, _placed(X, cuts, names))
    if parts is None:
        return []
    columns, make = parts
    n = min(_MOST, max(_LEAST, _CELLS // max(1, len(columns))))
    random = np.random.default_rng(len(columns))
    kinds = [kind for group in _ODD for kind in group]
    cells = [
        [*column.ordinary(n, random), *(column.odd(kind, i) for kind in kinds)]
        for i, column in enumerate(columns)
    ]
    made = [Made(make(cells), tuple(n + end for end in _ENDS))]
    if any(c.number is None and c.unknown is not None for c in columns):
        new = [[c.odd(kind, i) for kind in _NEW] for i, c in enumerate(columns)]
        made.append(Made(make(new), (len(_NEW),)))
    return made


def _placed(X: Any, cuts: Mapping[int, Array], names: Any) -> Callable[[int], Array]:
    """Return a function from the place of a column to the thresholds of training's."""
    labels = None if isinstance(X, (list, dict)) else labels_of(X)
    if isinstance(X, dict):
        labels = list(X)
    elif isinstance(X, list) and isinstance(X[0], Mapping):
        labels = list(X[0])
    places: dict[Any, int] = {}
    if labels is not None and names is not None:
        known = {str(name): place for place, name in enumerate(names)}
        places = {i: known.get(str(name), -1) for i, name in enumerate(labels)}
        if {*places.values()} == {-1}:
            places = {}
    return lambda i: cuts.get(places.get(i, i), np.empty(0))


# ------------------------------------------------------------ arrays, lists, matrices


def _maker_of(X: Any) -> Any:
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return _of_array
    if isinstance(X, list) and X and isinstance(X[0], Mapping):
        return _of_dicts
    if isinstance(X, list) and X and isinstance(X[0], (list, tuple)):
        return _of_lists
    if isinstance(X, dict):
        return _of_dict
    return _of_sparse if hasattr(X, "tocsr") and hasattr(X, "toarray") else None


def _of_array(X: Array, cuts: Callable[[int], Array]) -> Any:
    if type(X) not in (np.ndarray, np.memmap) or X.dtype.kind not in "fiubO":
        return None
    if X.dtype.kind == "O":
        columns = [_of_objects(X[:, i].tolist(), cuts(i)) for i in range(X.shape[1])]
        return columns, lambda parts: _objects(parts)
    dtype, floats = X.dtype, X.dtype.kind == "f"
    columns = [
        _Column(X[:, i].tolist(), cuts(i), dtype, gap=np.nan, has_gaps=floats)
        for i in range(X.shape[1])
    ]
    order: Any = "F" if X.flags.f_contiguous and not X.flags.c_contiguous else "C"

    def make(parts: list[Any]) -> Any:
        with np.errstate(all="ignore"):
            return np.array(parts, dtype).T.copy(order)

    return columns, make


def _objects(parts: list[Any]) -> Array:
    rows = np.empty((len(parts[0]), len(parts)), object)
    for i, part in enumerate(parts):
        rows[:, i] = part
    return rows


def _of_objects(own: list[Any], cuts: Array) -> _Column:
    """Return a column of Python's values: one of numbers, if it holds nothing else."""
    types = {*map(type, own)} - {type(None)}
    if types and all(issubclass(kind, (int, float, np.number)) for kind in types):
        whole = all(issubclass(kind, (int, np.integer)) for kind in types)
        if {*types} <= {bool, np.bool_}:
            number: Any = np.bool_
        else:
            number = np.int64 if whole and not len(cuts) else np.float64
        gap = np.nan if number == np.float64 else None
        return _Column(own, cuts, number, gap=gap, is_object=True)
    return _Column(own, cuts)


def _of_lists(X: list[Any], cuts: Callable[[int], Array]) -> Any:
    if len({*map(len, X)}) > 1:
        return None
    columns = [_of_objects([row[i] for row in X], cuts(i)) for i in range(len(X[0]))]
    kind = type(X[0])
    return columns, lambda parts: [*map(kind, zip(*parts, strict=True))]


def _of_dicts(X: list[Any], cuts: Callable[[int], Array]) -> Any:
    keys = list(X[0])
    if any(list(row) != keys for row in X):
        return None
    columns = [_of_objects([row[k] for row in X], cuts(i)) for i, k in enumerate(keys)]
    return columns, lambda parts: [
        dict(zip(keys, row, strict=True)) for row in zip(*parts, strict=True)
    ]


def _of_dict(X: dict[Any, Any], cuts: Callable[[int], Array]) -> Any:
    columns = [
        [*v][:_LEAST] for v in X.values() if not np.isscalar(v) and v is not None
    ]
    if columns and len(columns) < len(X):
        return None
    rows = zip(*columns, strict=True) if columns else [X.values()]
    return _of_dicts([dict(zip(X, row, strict=True)) for row in rows], cuts)


def _of_sparse(X: Any, cuts: Callable[[int], Array]) -> Any:
    if X.dtype.kind not in "fiu" or X.ndim != 2 or X.shape[1] > _MOST_COLUMNS:
        return None
    rows = X[:8].toarray() if X.format == "csr" else X.tocsr()[:8].toarray()
    columns, _ = _of_array(np.asarray(rows), cuts)

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
            for start, end in itertools.pairwise(made.indptr):
                made.indices[start:end] = made.indices[start:end][::-1].copy()
                made.data[start:end] = made.data[start:end][::-1].copy()
            made.has_sorted_indices = False
        return made

    return columns, make


# ------------------------------------------------------------ frames and tables


def _of_pandas(X: Any, cuts: Callable[[int], Array]) -> Any:
    import pandas as pd

    dtypes = X.dtypes.tolist()
    if len(dtypes) > _MOST_COLUMNS and len({*map(str, dtypes)}) > 1:
        return None
    columns = [
        _of_series(X.iloc[:, i], dtype, cuts(i)) for i, dtype in enumerate(dtypes)
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


def _of_series(series: Any, dtype: Any, cuts: Array) -> _Column:
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
        return _Column(own, cuts, number, gap=gap, has_gaps=has_gaps)
    if is_category(dtype):
        known = tuple(dtype.categories.tolist())
        texts = all(isinstance(label, str) for label in known)
        return _Column(own, cuts, labels=known, unknown=_UNKNOWN if texts else None)
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return _of_objects(own, cuts)
    return _Column(own, cuts, unknown=_UNKNOWN if _holds_texts(dtype) else None)


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


def _of_polars(X: Any, cuts: Callable[[int], Array]) -> Any:
    import polars as pl

    dtypes = X.dtypes
    columns = [
        _of_typed(X.get_column(name).to_list(), dtype, cuts(i), str(dtype))
        for i, (name, dtype) in enumerate(zip(X.columns, dtypes, strict=True))
    ]

    def make(parts: list[Any]) -> Any:
        return pl.DataFrame(
            {
                name: pl.Series(part, dtype=dtype, strict=False)
                for name, part, dtype in zip(X.columns, parts, dtypes, strict=True)
            }
        )

    return columns, make


def _of_arrow(X: Any, cuts: Callable[[int], Array]) -> Any:
    import pyarrow as pa
    import pyarrow.compute

    schema = X.schema
    columns = [
        _of_typed(X.column(i).to_pylist(), field.type, cuts(i), str(field.type))
        for i, field in enumerate(schema)
    ]

    def make(parts: list[Any]) -> Any:
        pairs = zip(parts, schema.types, strict=True)
        arrays = [_arrow_array(part, kind) for part, kind in pairs]
        return type(X).from_arrays(arrays, schema=schema)

    def _arrow_array(part: list[Any], kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            known = pa.array([x for x in {*part} if x is not None], kind.value_type)
            codes = pa.compute.index_in(pa.array(part, kind.value_type), known)
            codes = codes.cast(kind.index_type)
            return pa.DictionaryArray.from_arrays(codes, known, ordered=kind.ordered)
        return pa.array(part, kind)

    return columns, make


def _of_typed(own: list[Any], dtype: Any, cuts: Array, text: str) -> _Column:
    number = number_of(dtype)
    if number is not None:
        return _Column(own, cuts, number)
    known = text.lower()
    open_ended = known.startswith(("str", "large_str", "utf8", "categorical"))
    return _Column(own, cuts, unknown=_UNKNOWN if open_ended else None)


_MAKERS: dict[str, Callable[[Any, Callable[[int], Array]], Any]] = {
    "pandas": _of_pandas,
    "polars": _of_polars,
    "pyarrow": _of_arrow,
    "batch": _of_arrow,
    "csr": _of_sparse,
}
