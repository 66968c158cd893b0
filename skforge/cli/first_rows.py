"""The first rows that ``predict`` answers are answered by the model's library, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skforge import config
from skforge._typing import Array
from skforge.cli.data import RowsFile
from skforge.cli.errors import FaultError, warn
from skforge.cli.models import is_own, quiet
from skforge.exceptions import shortened
from skforge.prediction.answers import as_array

if TYPE_CHECKING:
    from skforge.cli.frames import Rows
    from skforge.cli.library import ModelLibrary

#: Rows that are compared.
ROWS = 64
#: What is compared if the library has no such method, or one with other bits.
_INSTEAD = ("predict_raw", "predict_proba", "predict")


def compare_first(
    model_file: Path,
    opened: Any,
    file: RowsFile,
    model: Any,
    method: str,
    rows: Any,
    values: Array,
) -> None:
    """Compare the first values of a method with the library's own, bit by bit.

    The library gets the rows of the file, and nothing that skforge has read. If it is
    not installed or refuses them all, a warning says that nothing was compared. Raise
    FaultError if a bit differs, or if the library refuses some of the rows.
    """
    if not config.compares_forms() or is_own(model_file):
        return
    from skforge.cli.frames import read_rows
    from skforge.cli.library import NoLibraryError, library_of
    from skforge.prediction.differences import difference

    library = given = None
    asked = method
    try:
        library = library_of(model_file, opened, model.forest_, file.spec)
        if library is None:
            return
        methods = (m for m in (method, *_INSTEAD) if m in library.answers)
        asked = next(m for m in methods if hasattr(model, m))
        given = read_rows(file.table, ROWS)
        expected = library.answer(asked, library.rows(given, file.chosen))
    except Exception as error:  # of pandas, or of the library
        known = isinstance(error, NoLibraryError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        if library and given and not file.spec.whole:
            row = _refused(library, asked, given, file.chosen)
            if row is not None:
                value = as_array(values)[row].tolist()
                told = f"row {row + 1} has {value}, and {library.name} refuses it"
                raise _fault(asked, file, library.name, f": {told}: {why}") from error
        warn(f"the first rows were not compared with the library: {_one_line(why)}.")
        return
    expected = as_array(expected)[: len(values)]
    if asked != method or file.spec.whole:
        # of these rows alone: in other batches, steps may round otherwise
        values = quiet(model, asked)(rows[: len(expected)])
    found = difference(values[: len(expected)], expected)
    if found is None:
        return
    row, n = found.rows[0], len(found.rows)
    told = f"row {row + 1} has {found.value}, and {library.name} says {found.expected}"
    told = f" in {n} of {len(expected)} rows: {told}"
    raise _fault(asked, file, library.name, told)


def _refused(
    library: ModelLibrary, method: str, given: Rows, places: Any
) -> int | None:
    """Return the first row that a library refuses, if it takes others of them.

    Infinities do not count, which files' models answer for XGBoost, nor cells that
    this module makes no number of, such as True.
    """
    refused: list[int] = []
    n_rows = len(given.plain)
    for row in range(n_rows):
        try:
            rows = library.rows(given.part(row, row + 1), places)
        except ValueError:
            continue
        try:
            library.answer(method, rows)
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            if "inf" not in str(error).lower():
                refused.append(row)
    return refused[0] if 0 < len(refused) < n_rows else None


def _fault(method: str, file: RowsFile, name: str, told: str) -> FaultError:
    return FaultError(
        f"{method} of {file.table.name} differs from {name} itself{shortened(told)}. "
        "No result was kept. Please report it with the model and these rows, and "
        "predict with the library until then; SKFORGE_CHECK=off skips this comparison."
    )


def _one_line(text: str) -> str:
    return shortened((text.splitlines() or [""])[0].rstrip("."))
