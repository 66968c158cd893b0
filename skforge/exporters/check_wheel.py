"""Ask a wheel's own package, before it is handed out, for rows in every form.

Its arrays are read by the library, which is compared before. Rows by name and rows with
texts are read by the wheel's Python, so these have to give what their arrays give.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.exceptions import VerificationError
from skforge.exporters.check import CheckSample, agrees
from skforge.exporters.contents import Library
from skforge.runtime.mapping_values import ColumnRule
from skforge.runtime.mappings import MappingColumns

#: Rows that are read in each form, and mappings that are read one by one.
_ROWS, _ALONE = 100, 12
#: A text that no model knows, and a further column.
_UNKNOWN = "\x1a no category"


@no_warnings()  # of further columns
def verify_wheel(
    library: Library,
    wheel: bytes,
    sample: CheckSample,
    columns: MappingColumns | str | None,
) -> None:
    """Compare the answers of a wheel for this machine to rows in all forms.

    ``columns`` tell how it reads rows by name, or why it does not. Raise
    ``VerificationError`` if one differs from that to an array, or fails.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        zipfile.ZipFile(io.BytesIO(wheel)).extractall(folder)
        package = _imported(Path(folder) / library.name)
        try:
            forms = _encoded if library.categories else _by_name
            named = columns if isinstance(columns, MappingColumns) else None
            for name, given, same in forms(library, sample, named):
                for function in library.results:
                    answer = getattr(package, function)
                    try:
                        found = answer(given)
                    except Exception as error:
                        raise _fault(function, name, f"raises {error!r}") from error
                    if found.tobytes() != answer(same).tobytes():
                        raise _fault(function, name, "gives other bits")
            if library.categories:
                found, n = package.predict_raw(sample.cells), len(sample.cells)
                wanted = sample.raw[:n].reshape(found.shape)
                if not agrees(found, wanted, sample.limit[:n]):
                    raise _fault("predict_raw", "arrays of objects", "gives other bits")
        finally:
            for name in [n for n in sys.modules if n.startswith(_ALIAS)]:
                del sys.modules[name]


_ALIAS = "_skforge_checked_wheel"


def _imported(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        _ALIAS, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = sys.modules[_ALIAS] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


def _fault(function: str, form: str, what: str) -> VerificationError:
    return VerificationError(
        f"{function} of the wheel {what} for {form}, where the model answers as for an "
        "array; nothing was written. Please report this."
    )


Forms = Iterator[tuple[str, Any, Any]]


def _by_name(
    library: Library, sample: CheckSample, columns: MappingColumns | None
) -> Forms:
    """Yield the names of forms, the rows in them, and an array of the same rows."""
    if columns is None:
        return
    random = np.random.default_rng(2)
    unread = {*range(columns.width)} - {rule.place for rule in columns.rules}
    for known in (True, False):  # which are read by different code
        rows = sample.rows[:_ROWS].copy()
        rows[:, sorted(unread)] = 0
        values: dict[str, list[Any]] = {_UNKNOWN: ["any"] * len(rows)}
        for rule in reversed(columns.rules):
            values[rule.name] = _drawn(rule, known, rows, random)
        yield from _mapped(values, rows)
        if importlib.util.find_spec("pandas"):
            yield "a frame", _frame(values, columns), rows


def _mapped(values: dict[str, list[Any]], rows: Array) -> Forms:
    columns = zip(*values.values(), strict=True)
    lines = [dict(zip(values, row, strict=True)) for row in columns]
    yield "mappings", lines, rows
    yield from _one_by_one(lines, rows)
    yield "columns", values, rows


def _one_by_one(lines: list[dict[str, Any]], rows: Array) -> Forms:
    for i, line in enumerate(lines[:_ALONE]):
        yield "one mapping", line, rows[i : i + 1]


def _drawn(
    rule: ColumnRule, known: bool, rows: Array, random: np.random.Generator
) -> list[Any]:
    """Return a column's values as users have them, and write their numbers in rows.

    If not all are ``known``, every third number is missing, and a column of labels also
    has a missing one, and one that training had not, as far as the model has rules for
    these.
    """
    if not rule.table:
        if not known:
            rows[rule.place % 3 :: 3, rule.place] = np.nan
        return [None if v != v else v for v in rows[:, rule.place].tolist()]
    labels = [(label, code) for label, code in rule.table.items() if code is not None]
    if rule.missing is not None and not known:
        labels.append((None, rule.missing))
    texts = all(isinstance(label, str) for label in rule.table)
    if rule.unknown is not None and texts and not known:
        labels.append((_UNKNOWN, rule.unknown))
    chosen = [labels[i] for i in random.integers(len(labels), size=len(rows))]
    rows[:, rule.place] = [code for _, code in chosen]
    return [label for label, _ in chosen]


def _frame(values: dict[str, list[Any]], columns: MappingColumns) -> Any:
    """Return a frame whose lists of categories have an order of their own."""
    from pandas import Categorical, DataFrame

    frame = DataFrame(values)
    for rule in columns.rules:
        if rule.categories is not None:
            there = {*values[rule.name]} - {None}
            labels = [x for x in reversed(rule.categories) if x in there]
            labels += [_UNKNOWN] * (_UNKNOWN in there)
            frame[rule.name] = Categorical(values[rule.name], categories=labels)
    return frame


def _encoded(
    library: Library, sample: CheckSample, columns: MappingColumns | None
) -> Forms:
    """Yield the forms of rows with texts; an array of objects has the same."""
    cells = sample.cells[:_ROWS]
    yield "lists", cells.tolist(), cells
    other, texts = cells.copy(), cells.copy()
    for place in library.categories:
        other[::3, place], texts[::3, place] = 7, "7"
        other[1::3, place], texts[1::3, place] = True, "1"
        other[2::3, place] = [text.encode() for text in texts[2::3, place]]
    yield "whole numbers, booleans and bytes", other, texts
    if columns is None:
        return
    values = {_UNKNOWN: ["any"] * len(cells)}
    for rule in reversed(columns.rules):
        values[rule.name] = cells[:, rule.place].tolist()
    lines = [
        dict(zip(values, row, strict=True))
        for row in zip(*values.values(), strict=True)
    ]
    yield "mappings", lines, cells
    yield from _one_by_one(lines, cells)
    yield "columns", values, cells
    if importlib.util.find_spec("pandas"):
        from pandas import DataFrame

        yield "a frame", DataFrame(values), cells
