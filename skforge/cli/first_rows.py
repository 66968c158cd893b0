"""The first rows that ``predict`` answers are answered by the model's library, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skforge import config
from skforge._typing import Array
from skforge.cli.data import RowsFile
from skforge.cli.errors import FaultError, warn
from skforge.cli.models import is_own, quiet
from skforge.exceptions import shortened
from skforge.prediction.answers import as_array

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
    not installed or refuses them, a warning says that nothing was compared. Raise
    FaultError if a bit differs.
    """
    if not config.compares_forms() or is_own(model_file):
        return
    from skforge.cli.frames import read_rows
    from skforge.cli.library import NoLibraryError, library_of
    from skforge.prediction.differences import difference

    try:
        library = library_of(model_file, opened, model.forest_, file.spec)
        if library is None:
            return
        methods = (m for m in (method, *_INSTEAD) if m in library.answers)
        asked = next(m for m in methods if hasattr(model, m))
        given = read_rows(file.table, ROWS)
        expected = library.answer(asked, library.rows(given, file.chosen))
    except Exception as error:  # noqa: BLE001 - of pandas, or of the library
        known = isinstance(error, NoLibraryError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
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
    raise FaultError(
        f"{asked} of {file.table.name} differs from {library.name} itself in {n} of "
        f"{len(expected)} rows: {shortened(told)}. No result was kept. Please report "
        "it with the model and these rows, and predict with the library until then; "
        "SKFORGE_CHECK=off skips this comparison."
    )


def _one_line(text: str) -> str:
    return shortened((text.splitlines() or [""])[0].rstrip("."))
