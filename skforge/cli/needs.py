"""What a model needs to be given: which columns, and what each of them holds.

The model decides how a column of a file is read, and never the values that happen to
be in a part of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.compiler.frontends.base import is_compiled, is_pipeline, unwrap
from skforge.compiler.frontends.members import fitted_members, has_members, is_wrapper
from skforge.compiler.frontends.pipeline import transformers
from skforge.exceptions import InvalidInputError, UnsupportedModelError

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest


@dataclass(frozen=True)
class Needs:
    """The rows that a model takes."""

    #: How many columns, and their names, if the model knows any.
    width: int
    names: Sequence[str] | None = None
    #: The columns that have to be there, if not all: a ColumnTransformer drops others.
    used: frozenset[int] | None = None
    #: Columns of texts, with the texts that the model knows.
    texts: Mapping[int, set[str]] = field(default_factory=dict)
    #: Columns of categories that are known by name.
    categories: Mapping[int, Sequence[str | float]] = field(default_factory=dict)
    #: Dtype of arrays, where all columns are numbers.
    dtype: Any = np.float64
    #: Whether rows are frames, because texts or the names of columns matter.
    framed: bool = False
    #: Whether all rows go in one batch: steps that run in their library may round a
    #: row differently in another batch. Columns then are texts if they look like it.
    whole: bool = False
    #: Whether rows may have further columns, which are ignored.
    wider: bool = False
    #: Whether spaces in names have become underscores.
    underscores: bool = False


def needs_of(model: Any) -> Needs:
    """Return what a fitted model takes, as ``open_model`` returns it."""
    from skforge.compiler.runtime.module import CompiledModule
    from skforge.sources.find import read_model
    from skforge.sources.fitted import model_of, start_of
    from skforge.sources.stored_model import StoredModel

    if isinstance(model, CompiledModule):
        model = model.forest
    inner, forest = unwrap(model_of(model) if is_compiled(model) else model), None
    try:
        if not is_compiled(model):
            forest = read_model(inner)
        elif isinstance(inner, StoredModel) or start_of(model) is None:
            forest = model.forest_
    except UnsupportedModelError:
        if not has_members(inner):
            raise
    names = getattr(inner, "feature_names_in_", None)
    if isinstance(inner, StoredModel) and inner.kind == "pipeline":
        return _of_stored(inner, model.forest_, names)
    if forest is not None and not _has_steps(inner):
        return _of_forest(forest, names)
    width = getattr(inner, "n_features_in_", None)
    if width is None:
        raise InvalidInputError(
            "The model does not know how many columns its rows have, so they cannot "
            "be taken from a file."
        )
    used: set[int] = set()
    texts: dict[int, set[str]] = {}
    _look(inner, range(width), used, texts)
    return Needs(
        int(width),
        None if names is None else [str(name) for name in names],
        frozenset(used),
        texts,
        framed=names is not None or bool(texts),
        whole=forest is None,
    )


def _has_steps(model: Any) -> bool:
    """Tell whether rows go through a pipeline, around or inside the model."""
    if is_wrapper(model):
        return any(_has_steps(unwrap(member)) for member in fitted_members(model))
    return is_pipeline(model)


def _of_forest(forest: Forest, names: Any) -> Needs:
    names = forest.feature_names if names is None else [str(name) for name in names]
    made_up = names and all(re.fullmatch(r"Column_\d+", name) for name in names)
    known = {i: labels for i, labels in enumerate(forest.category_names) if labels}
    return Needs(
        forest.n_features,
        None if made_up else names,
        categories=known,
        dtype=forest.input_dtype,
        framed=bool(known),
        wider=forest.wider_rows,
        underscores=forest.source == "lightgbm",
    )


def _of_stored(model: Any, forest: Forest, names: Any) -> Needs:
    """Return what a pipeline takes that skforge.load returned."""
    from skforge.sources.find import source_of

    try:
        columns = source_of(model, forest).columns()
    except InvalidInputError:  # no names
        columns = None
    if columns is None:
        return Needs(forest.n_features, dtype=forest.input_dtype)
    tables = {rule.place: rule.table or {} for rule in columns.rules}
    words = {i: {w for w in t if isinstance(w, str)} for i, t in tables.items()}
    return Needs(
        forest.n_features,
        [str(name) for name in (model.rules.rows.names if names is None else names)],
        frozenset(tables),
        {place: known for place, known in words.items() if known},
        framed=True,
    )


def _look(
    step: Any, places: Sequence[int], used: set[int], texts: dict[int, set[str]]
) -> None:
    """Note which of these columns a fitted step reads, and the texts that it knows."""
    step = unwrap(step)
    if isinstance(step, str) and not transformers.is_absent(step):  # "drop"
        return
    if parts := transformers.inside(step):
        follows = transformers.class_of(step) == transformers.PIPELINE
        for _, part, taken in parts:
            read = places if taken is None else [places[i] for i in taken]
            _look(part, read, used, texts)
            if follows and not _keeps_columns(part, len(places)):
                break
        return
    if has_members(step):
        for member in fitted_members(step):
            _look(member, places, used, texts)
        return
    used.update(places)
    known: Any = getattr(step, "categories_", None)
    if known is None:
        known = [[value] for value in getattr(step, "statistics_", ())]
    if hasattr(step, "build_analyzer"):  # a vectoriser of texts
        known = [[""]] * len(places)
    if len(known) == len(places):
        for place, values in zip(places, known, strict=True):
            if words := {str(value) for value in values if isinstance(value, str)}:
                texts.setdefault(place, set()).update(words)


def _keeps_columns(step: Any, width: int) -> bool:
    """Tell whether a step hands on its columns in their order, texts included."""
    if transformers.is_absent(step):
        return True
    imputer = transformers.class_of(step).endswith(".SimpleImputer")
    return imputer and len(step.get_feature_names_out()) == width
