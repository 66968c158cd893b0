"""Read rows and schedules from files named on the command line."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.rows import read_columns
from skforge.exceptions import InvalidInputError, ScheduleError

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest
    from skforge.compiler.schedule.schedule import Schedule

Rows = NDArray[np.floating[Any]]

#: Texts of missing values in .csv files; ``float`` parses "nan" itself.
_MISSING = {"", "na", "n/a", "<na>", "null", "none"}


def load_rows(
    path: Path | None, forest: Forest, columns: str | None = None
) -> Rows | None:
    """Read rows for a forest from a .npy, .csv or .parquet file, if there is one.

    ``columns="A:B"`` takes columns A to B - 1. None takes the columns named like the
    features, or all columns if the file or the model has no names.
    """
    if path is None:
        if columns is not None:
            raise InvalidInputError(
                "--columns chooses columns of --data, which is missing."
            )
        return None
    rows, names, words = _read(path)
    places = list(range(rows.shape[1]))
    if columns is not None:
        places = places[_slice(columns)]
    elif names is not None and _are_given(forest.feature_names):
        places = _places(path, names, forest)
    if found := [words[i] for i in places if i in words]:
        raise InvalidInputError(
            f"{path.name} cannot be read as a table of numbers: {found[0]}, which is "
            "no number; encode it as it was encoded for training."
        )
    rows = read_columns(forest, rows[:, places])
    if rows.shape[1] != forest.n_features:
        raise InvalidInputError(
            f"{path.name} has {rows.shape[1]} columns, but the model takes "
            f"{forest.n_features}; choose them with --columns, such as "
            f"--columns 0:{forest.n_features}."
        )
    if len(rows) == 0:
        raise InvalidInputError(f"{path.name} has no rows; give at least one.")
    return np.ascontiguousarray(rows, dtype=forest.input_dtype)


def _are_given(names: Sequence[str] | None) -> bool:
    """Return whether a model has feature names that LightGBM did not invent."""
    return names is not None and not all(
        re.fullmatch(r"Column_\d+", name)
        for name in names  # LightGBM's default names
    )


def _places(path: Path, names: list[str], forest: Forest) -> list[int]:
    """Return the positions of the model's features among a file's columns."""
    where = {name: i for i, name in enumerate(names)}
    wanted = forest.feature_names or ()
    missing = [name for name in wanted if name not in where]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InvalidInputError(
            f"{path.name} lacks columns of the model: "
            f"{', '.join(map(repr, missing[:3]))}{more}. To take columns by their "
            f"place, give --columns 0:{forest.n_features}."
        )
    return [where[name] for name in wanted]


def _slice(columns: str) -> slice:
    first, colon, last = columns.partition(":")
    try:
        if not colon:
            raise ValueError
        return slice(int(first or 0), int(last) if last else None)
    except ValueError:
        raise InvalidInputError(
            f"--columns takes a range such as 0:13, not {columns!r}."
        ) from None


#: Rows, column names, and the place of the first text for columns that hold text.
_Table: TypeAlias = tuple[NDArray[Any], list[str] | None, dict[int, str]]


def _read(path: Path) -> _Table:
    names: list[str] | None = None
    words: dict[int, str] = {}
    try:
        match path.suffix:
            case ".npy":
                rows = np.load(path, allow_pickle=False)
            case ".csv":
                rows, names, words = _read_csv(path)
            case ".parquet":
                rows, names, words = _read_parquet(path)
            case other:
                raise InvalidInputError(
                    f"{path.name} ends in {other!r}; rows are read from .npy, .csv and "
                    ".parquet files."
                )
    except ImportError as error:
        raise InvalidInputError(
            f"Reading {path.name} needs pandas and pyarrow: pip install pandas pyarrow."
        ) from error
    except (OSError, ValueError, TypeError, EOFError, csv.Error) as error:
        if isinstance(error, InvalidInputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(
            f"{path.name} cannot be read as a table of numbers: {reason}"
        ) from error
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{path.name} holds an array of shape {rows.shape} and dtype {rows.dtype}; "
            "rows are a two-dimensional array of numbers."
        )
    return rows, names, words


def _read_parquet(path: Path) -> _Table:
    import pandas

    frame = pandas.read_parquet(path)
    rows, words = np.full(frame.shape, np.nan), {}
    for i, name in enumerate(frame.columns):
        column = frame.iloc[:, i]
        try:
            rows[:, i] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            words[i] = f"column {str(name)!r} has {column.dropna().iloc[0]!r}"
    return rows, [str(name) for name in frame.columns], words


def _read_csv(path: Path) -> _Table:
    """Read numbers; a first line with anything else holds the column names."""
    names: list[str] | None = None
    words: dict[int, str] = {}
    values, width = array("d"), 0
    with path.open(encoding="utf-8-sig", newline="") as file:  # Excel writes a mark
        reader = csv.reader(file)
        for row in filter(None, reader):
            if not width:
                width = len(row)
                if None in map(_number, row):
                    names = [cell.strip() for cell in row]
                    continue
            if len(row) != width:
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} cells, not {width}."
                )
            for i, cell in enumerate(row):
                number = _number(cell)
                if number is None:
                    words.setdefault(i, f"line {reader.line_num} has {cell!r}")
                    number = np.nan
                values.append(number)
    if not width:
        raise ValueError("it is empty.")
    return np.array(values).reshape(-1, width), names, words


def _number(cell: str) -> float | None:
    """Return the number in a cell, NaN for a missing one, None for anything else.

    >>> _number(" 1e3"), _number(""), _number("NA"), _number("red")
    (1000.0, nan, nan, None)
    """
    text = cell.strip()
    if text.lower() in _MISSING:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return None


def load_schedule(text: str | None) -> Schedule | None:
    """Return the schedule that an option gives: a preset, JSON, or a JSON file."""
    from skforge.compiler.schedule.schedule import Schedule

    if text is None or text == "auto":
        return None
    if text.lstrip().startswith("{"):
        return Schedule.from_json(text)
    if text.endswith(".json"):
        try:
            return Schedule.from_json(Path(text).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ScheduleError(
                f"The schedule file {text!r} cannot be read: {why}."
            ) from error
    return Schedule.preset(text)
