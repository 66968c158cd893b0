"""Which conversion of rows helps, found by trying: of the fewest columns, or of all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice, product
from typing import Any

import numpy as np

from skforge.compiler.forest.frames import labels_of, number_of
from skforge.exceptions import with_article

Helps = Callable[[Any], bool]

#: The method by which a column of each library is converted, and the types to try.
_CASTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "pandas": ("astype", ("float64", "str", "object", "category")),
    "polars": ("cast", (float, str)),
    "pyarrow": ("cast", ("float64", "string")),
}
#: Calls that convert rows as a whole.
_WHOLE = "X.to_pandas()", "X.toarray()", "numpy.asarray(X, 'float64')"
#: Columns that are named, and combinations of types that are tried.
_NAMED, _TRIED = 3, 12


def conversion(X: Any, helps: Helps) -> str:
    """Return what is special about rows, and the call that helps; "" if none does."""
    return _of_columns(X, helps) or _of_all(X, helps)


def _of_columns(X: Any, helps: Helps) -> str:
    library = type(X).__module__.partition(".")[0]
    if library not in _CASTS or not hasattr(X, "columns"):
        return ""
    (method, types), pandas = _CASTS[library], library == "pandas"
    names = [*labels_of(X)]
    columns = [X.iloc[:, i] if pandas else X[name] for i, name in enumerate(names)]
    casts: dict[tuple[int, Any], Any] = {}
    #: Columns by dtype and the types that they can be cast to.
    groups: dict[tuple[str, tuple[Any, ...]], list[int]] = {}
    for place, column in enumerate(columns):
        dtype = str(column.type if library == "pyarrow" else column.dtype)
        if dtype == "object":
            dtype = f"object of {type(column.iloc[0]).__name__}"
        number = number_of(column.type if library == "pyarrow" else column.dtype)
        plain = dtype.lower() in ("float64", "double") or dtype.startswith("complex")
        for to in () if plain else types[: 1 if number is not None else None]:
            with suppress(Exception):  # texts, of any library
                casts[place, to] = getattr(column, method)(to)
        if fits := tuple(to for to in types if (place, to) in casts):
            groups.setdefault((dtype, fits), []).append(place)

    def helped(chosen: dict[Any, Any]) -> bool:
        to = {place: chosen[group] for group in chosen for place in groups[group]}
        mixed = [casts.get((i, to.get(i)), column) for i, column in enumerate(columns)]
        if pandas:
            return helps(type(X)(dict(enumerate(mixed))).set_axis(names, axis=1))
        arguments = (mixed,) if library == "polars" else (mixed, names)
        return helps(getattr(type(X), "from_arrays", type(X))(*arguments))

    every = (
        dict(zip(groups, to, strict=True)) for to in product(*(g[1] for g in groups))
    )
    chosen = next(filter(helped, islice(every, _TRIED)), {}) if groups else {}
    for group in [*chosen]:
        rest = {other: to for other, to in chosen.items() if other != group}
        chosen = rest if rest and helped(rest) else chosen
    if not chosen:
        return ""
    found = [(i, *group, to) for group, to in chosen.items() for i in groups[group]]
    told = ", ".join(f"{names[i]!r} is {dtype}" for i, dtype, *_ in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if found[_NAMED:] else ""
    casting = [
        (repr(names[i]), to.__name__ if isinstance(to, type) else repr(to))
        for i, *_, to in found[:_NAMED]
    ]
    call = ", ".join(f"{name}: {to}" for name, to in casting)
    call = f"X.{method}({{{call}{', ...' * bool(more)}}})"
    if library == "pyarrow":
        call = ", ".join(f"X[{name}].cast({to})" for name, to in casting)
    return f"column{'s'[: found[1:] != []]} {told}{more}. Convert with {call}."


def _floats(X: Any) -> Any:
    rows = np.asarray(X)
    return rows if rows.dtype.kind == "c" else np.asarray(rows, np.float64)


def _of_all(X: Any, helps: Helps) -> str:
    for call in _WHOLE:
        try:
            rows = getattr(X, call[2:-2])() if call.startswith("X.") else _floats(X)
        except (AttributeError, ImportError, TypeError, ValueError):
            continue
        if helps(rows):
            library, name = type(X).__module__.partition(".")[0], type(X).__name__
            kind = "an array" if isinstance(X, np.ndarray) else with_article(name)
            if hasattr(X, "dtype"):
                kind += f" of {X.dtype}"
            elif hasattr(X, "columns"):
                kind += f" of {library}"
            return f"X is {kind}. Convert with {call}."
    return ""
