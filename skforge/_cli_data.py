"""Rows and schedules from files that a user names on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skforge.exceptions import InvalidInputError, ScheduleError

if TYPE_CHECKING:
    from skforge.compiler.forest import Forest
    from skforge.compiler.schedule import Schedule

Rows = NDArray[np.floating[Any]]


def load_rows(path: Path, forest: Forest, columns: str | None = None) -> Rows:
    """Read rows for a forest from a .npy, .csv or .parquet file.

    Parameters
    ----------
    path : Path
        The file. A .csv may have a header line.
    forest : Forest
        Gives the number, the names and the dtype of the features.
    columns : str or None, default=None
        ``"A:B"`` takes columns A to B - 1. With None the columns are those named like
        the features where all names are found, and all columns otherwise.
    """
    rows, names = _read(path)
    if columns is not None:
        rows = rows[:, _slice(columns)]
    elif names is not None and forest.feature_names is not None:
        where = {name: i for i, name in enumerate(names)}
        if all(name in where for name in forest.feature_names):
            rows = rows[:, [where[name] for name in forest.feature_names]]
    if rows.shape[1] != forest.n_features:
        raise InvalidInputError(
            f"{path.name} has {rows.shape[1]} columns, but the model takes "
            f"{forest.n_features}; choose them with --columns, such as "
            f"--columns 0:{forest.n_features}."
        )
    if len(rows) == 0:
        raise InvalidInputError(f"{path.name} has no rows; give at least one.")
    return np.ascontiguousarray(rows, dtype=forest.input_dtype)


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


def _read(path: Path) -> tuple[NDArray[Any], list[str] | None]:
    names: list[str] | None = None
    try:
        match path.suffix:
            case ".npy":
                rows = np.load(path, allow_pickle=False)
            case ".csv":
                rows, names = _read_csv(path)
            case ".parquet":
                import pandas

                frame = pandas.read_parquet(path)
                names = [str(name) for name in frame.columns]
                rows = frame.to_numpy(dtype=np.float64, na_value=np.nan)
            case other:
                raise InvalidInputError(
                    f"{path.name} ends in {other!r}; rows are read from .npy, .csv and "
                    ".parquet files."
                )
    except ImportError as error:
        raise InvalidInputError(
            f"Reading {path.name} needs pandas and pyarrow: pip install pandas pyarrow."
        ) from error
    except (OSError, ValueError, TypeError, EOFError) as error:
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
    return rows, names


def _read_csv(path: Path) -> tuple[NDArray[Any], list[str] | None]:
    with path.open(encoding="utf-8") as file:
        first = [cell.strip().strip('"') for cell in file.readline().split(",")]
    names = None if all(map(_is_number, first)) else first
    rows = np.genfromtxt(
        path, delimiter=",", skip_header=0 if names is None else 1, ndmin=2
    )
    return rows, names


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def load_schedule(text: str | None) -> Schedule | None:
    """Return the schedule that an option names: a preset, JSON, or a file of JSON."""
    from skforge.compiler.schedule import Schedule

    if text is None or text == "auto":
        return None
    if text.lstrip().startswith("{"):
        return Schedule.from_json(text)
    if text.endswith(".json"):
        try:
            return Schedule.from_json(Path(text).read_text(encoding="utf-8"))
        except OSError as error:
            raise ScheduleError(
                f"The schedule file {text!r} cannot be read: {error.strerror}."
            ) from error
    return Schedule.preset(text)
