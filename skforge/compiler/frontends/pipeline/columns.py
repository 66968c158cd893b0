"""The columns of a fitted pipeline: which column of the rows each one is made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.frontends.pipeline.transformers import (
    COLUMNS,
    PIPELINE,
    UNION,
    class_of,
    is_absent,
    of_first,
    reads,
    refuse,
)
from skforge.exceptions import InvalidModelError, UnsupportedModelError

Array = NDArray[Any]

_CELLS = 1 << 22  # of a matrix given to a transformer at a time


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A fitted transformer and the columns that it gets."""

    step: str
    transformer: Any
    inputs: tuple[Column, ...]
    #: Whether it accepts missing values.
    nan: bool

    def apply(self, values: Array, read: Array, place: Array) -> Array:
        """Return output ``place`` of rows that hold each value in column ``read``."""
        order = np.argsort(read, kind="stable")
        counts = np.bincount(read, minlength=len(self.inputs))
        row = np.empty(len(read), np.intp)
        row[order] = np.arange(len(read)) - np.repeat(counts.cumsum() - counts, counts)
        found = np.empty(len(values), np.float64)
        n_rows, step = counts.max(initial=0), max(1, _CELLS // len(self.inputs))
        for start in range(0, n_rows, step):
            at = np.flatnonzero((row >= start) & (row < start + step))
            matrix = np.zeros((min(step, n_rows - start), len(self.inputs)))
            matrix[row[at] - start, read[at]] = values[at]
            found[at] = self.transform(matrix)[row[at] - start, place[at]]
        return found

    def transform(self, matrix: Array) -> Array:
        """Return what the transformer itself makes of a matrix."""
        return _called(self.transformer.transform, self.step, matrix, checks=False)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column: one of the rows, or an output of a transformer."""

    #: The column of the rows that it depends on.
    source: int
    stage: Stage | None = None
    #: The stage's input that it reads, and its place among the stage's outputs.
    read: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The columns of a pipeline.

    Parameters
    ----------
    width : int
        Columns of the rows.
    columns : tuple of Column
        Those that the last step gets.
    stages : tuple of Stage
        All transformers, also those whose outputs are dropped later.
    """

    width: int
    columns: tuple[Column, ...]
    stages: tuple[Stage, ...]


def values_of(columns: Sequence[Column], which: Array, x: Array) -> Array:
    """Return ``columns[which[i]]`` of a row with ``x[i]`` in that column's source."""
    found = np.empty(len(x), np.float64)
    stages: dict[int, list[int]] = {}
    for i, column in enumerate(columns):
        stages.setdefault(id(column.stage), []).append(i)
    read = np.array([column.read for column in columns], np.intp)
    place = np.array([column.place for column in columns], np.intp)
    for members in stages.values():
        inside = np.zeros(len(columns), np.bool_)
        inside[members] = True
        at = np.flatnonzero(inside[which])
        stage = columns[members[0]].stage
        if stage is None:
            found[at] = x[at]
        elif len(at):
            own = which[at]
            given = values_of(stage.inputs, read[own], x[at])
            found[at] = stage.apply(given, read[own], place[own])
    return found


def plan_of(pipeline: Any) -> Plan:
    """Return the columns that the last step of a fitted pipeline gets."""
    width = of_first(pipeline, "n_features_in_")
    if width is None:
        raise InvalidModelError(
            "The pipeline does not know how many columns its rows have "
            "(n_features_in_); begin it with a transformer that checks them, or fit it."
        )
    stages: list[Stage] = []
    columns = tuple(map(Column, range(int(width))))
    for name, transformer in pipeline.steps[:-1]:
        columns = _after(name, transformer, columns, stages)
    return Plan(int(width), columns, tuple(stages))


def _after(
    step: str, transformer: Any, inputs: tuple[Column, ...], stages: list[Stage]
) -> tuple[Column, ...]:
    """Return the columns after a step; its stages are added to the list."""
    if is_absent(transformer):
        return inputs
    own = class_of(transformer)
    if own == PIPELINE:
        for name, one in transformer.steps:
            inputs = _after(f"{step}__{name}", one, inputs, stages)
        return inputs
    if own == UNION:
        found: tuple[Column, ...] = ()
        for name, one in transformer.transformer_list:
            if one != "drop":
                found += _after(f"{step}__{name}", one, inputs, stages)
        return found
    if own == COLUMNS:
        return _by_columns(step, transformer, inputs, stages)
    refuse(step, transformer)
    stage = Stage(step, transformer, inputs, _takes_nan(transformer, step, len(inputs)))
    stages.append(stage)
    made = tuple(
        Column(inputs[read].source, stage, read, place)
        for place, read in enumerate(reads(transformer, len(inputs)))
    )
    n_outputs = stage.transform(np.zeros((1, len(inputs)))).shape[1]
    if n_outputs != len(made):
        _refuse(step, transformer, f"has {n_outputs} outputs, not {len(made)}")
    return made


def _by_columns(
    step: str, transformer: Any, inputs: tuple[Column, ...], stages: list[Stage]
) -> tuple[Column, ...]:
    """Return the outputs of a ColumnTransformer, in its own order."""
    found: dict[int, Column] = {}
    for name, one, _ in transformer.transformers_:
        chosen = transformer._transformer_to_input_indices[name]
        if isinstance(one, str) and one == "drop":
            continue
        given = tuple(inputs[i] for i in chosen)
        made = _after(f"{step}__{name}", one, given, stages) if given else ()
        places = transformer.output_indices_[name]
        if places.stop - places.start != len(made):
            _refuse(step, transformer, f"has {places} for the outputs of {name!r}")
        found.update(zip(range(places.start, places.stop), made, strict=True))
    return tuple(found[i] for i in range(len(found)))


def _takes_nan(transformer: Any, step: str, width: int) -> bool:
    """Ask a transformer whether it accepts missing values."""
    try:
        _called(transformer.transform, step, np.full((1, width), np.nan), checks=True)
    except UnsupportedModelError:
        raise
    except ValueError:
        return False
    return True


def _called(
    method: Callable[[Array], Any], step: str, matrix: Array, *, checks: bool
) -> Array:
    """Return a transformer's own answer as float64, without its warnings."""
    from sklearn import config_context

    with (
        warnings.catch_warnings(),
        config_context(assume_finite=not checks),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        answer = method(matrix)
    if hasattr(answer, "tocsr"):
        _refuse(step, method.__self__, "gives sparse columns")  # type: ignore[attr-defined]
    found = np.asarray(answer)
    if found.dtype not in (np.float64, np.bool_):
        _refuse(step, method.__self__, f"gives {found.dtype} columns")  # type: ignore[attr-defined]
    return found.astype(np.float64, copy=False)


def _refuse(step: str, transformer: Any, why: str) -> NoReturn:
    raise UnsupportedModelError(
        f"The step {step!r} of the pipeline, {type(transformer).__name__}, {why}, "
        "which cannot be folded. CompiledForest(pipeline) runs it in its library."
    )
