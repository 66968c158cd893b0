"""Which rows a model takes, as plain data, for files and tables of other systems.

The model decides how a column is read, and never the values that happen to be in a part
of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.frontends.base import class_name, is_compiled, is_pipeline, unwrap
from skforge.frontends.members import fitted_members, has_members, is_wrapper
from skforge.frontends.pipeline import transformers
from skforge.rows.readers import reader_of
from skforge.sources.base import given_names, unplaced
from skforge.sources.find import read_model, source_of
from skforge.sources.fitted import model_of, start_of
from skforge.sources.stored_model.model import StoredModel

if TYPE_CHECKING:
    from skforge.forest.forest import Forest


@dataclass(frozen=True)
class RowSpec:
    #: How many columns, and their names, if the model knows any.
    width: int
    names: tuple[str, ...] | None = None
    #: The columns that have to be there, if not all: a ColumnTransformer drops others.
    used: frozenset[int] | None = None
    #: Columns of texts, with the texts that the model knows.
    texts: Mapping[int, set[str]] = field(default_factory=dict)
    #: Columns of categories that are known by name.
    categories: Mapping[int, Sequence[str | float]] = field(default_factory=dict)
    #: Dtypes that the indices of these must have, of categories that are whole numbers.
    index_dtypes: Mapping[int, str] = field(default_factory=dict)
    #: Whether categories are matched by value: models of XGBoost and LightGBM that were
    #: trained on numbers use positions in each frame's own list of categories.
    by_value: bool = False
    #: Why values cannot be read, as some may be categories or codes; "" if they can.
    unread: str = ""
    #: Columns of CatBoost's categories: texts, whole numbers and booleans; whether True
    #: or False was a text in training.
    hashed: Mapping[int, bool] = field(default_factory=dict)
    #: Dtype of arrays, where all columns are numbers.
    dtype: Any = np.float64
    #: Whether rows go through the steps of a pipeline, which may read texts.
    steps: bool = False
    #: Whether all rows go in one batch: steps that run in their library may round a
    #: row differently in another batch. Columns then are texts if they look like it.
    whole: bool = False
    #: Whether rows may have further columns, which are ignored.
    wider: bool = False
    #: Whether spaces in names have become underscores.
    underscores: bool = False

    @property
    def framed(self) -> bool:
        by_name = self.steps and self.names is not None
        return by_name or bool(self.texts or self.categories or self.hashed)


def row_spec(model: Any) -> RowSpec:
    """Return what a model takes; InvalidInputError if it does not know its width."""
    ours, forest = is_compiled(model), None
    inner = model_of(model) if ours else getattr(model, "forest", model)  # a module's
    inner = unwrap(inner)
    try:
        if not ours:
            forest = read_model(inner)
        elif start_of(model) is None:
            forest = model.forest_
    except UnsupportedModelError:
        if not has_members(inner):
            raise
    named = getattr(inner, "feature_names_in_", None)
    names = None if named is None else tuple(map(str, named))
    if isinstance(inner, StoredModel) and inner.kind == "pipeline":
        return _of_stored(inner, names)
    if forest is not None and not _has_steps(inner):
        spec = _of_forest(forest, names)
        if not any(type(names[0]) is int for names in spec.categories.values()):
            return spec
        dtypes = enumerate(source_of(inner, forest).index_dtypes)
        return replace(spec, index_dtypes={i: dtype for i, dtype in dtypes if dtype})
    width = getattr(inner, "n_features_in_", None)
    if width is None:
        raise InvalidInputError(
            "The model does not know how many columns its rows have, so they cannot "
            "be taken from a file or a table."
        )
    used: set[int] = set()
    texts: dict[int, set[str]] = {}
    _look(inner, range(width), used, texts)
    known = int(width), names, frozenset(used), texts
    return RowSpec(*known, steps=True, whole=forest is None)


def _has_steps(model: Any) -> bool:
    if is_wrapper(model):
        return any(_has_steps(unwrap(member)) for member in fitted_members(model))
    return is_pipeline(model)


def _of_forest(forest: Forest, names: tuple[str, ...] | None) -> RowSpec:
    known = {i: labels for i, labels in enumerate(forest.category_names) if labels}
    own_lists = forest.source in ("xgboost", "lightgbm")
    used = frozenset(range(forest.n_columns)) - forest.dropped_columns
    return RowSpec(
        forest.n_columns,
        given_names(names or forest.column_names),
        used if forest.dropped_columns else None,
        categories=known,
        unread=unplaced(forest) if forest.lacks_columns else "",
        hashed=reader_of(forest).spelled_booleans(),
        by_value=bool(known) or (not own_lists and forest.category_offset[-1] > 0),
        dtype=forest.input_dtype,
        wider=forest.wider_rows,
        underscores=forest.source == "lightgbm",
    )


def _of_stored(model: StoredModel, names: tuple[str, ...] | None) -> RowSpec:
    forest = model.forest
    try:
        columns = source_of(model, forest).columns()
    except InvalidInputError:  # no names
        columns = None
    if columns is None:
        return RowSpec(forest.n_features, dtype=forest.input_dtype, steps=True)
    tables = {rule.place: rule.table or {} for rule in columns.rules}
    words = {i: {w for w in t if isinstance(w, str)} for i, t in tables.items()}
    texts = {column: known for column, known in words.items() if known}
    names = names or forest.feature_names
    return RowSpec(forest.n_features, names, frozenset(tables), texts, steps=True)


def _look(
    step: Any, places: Sequence[int], used: set[int], texts: dict[int, set[str]]
) -> None:
    step = unwrap(step)
    if isinstance(step, str) and not transformers.is_absent(step):  # "drop"
        return
    if parts := transformers.children(step):
        follows = class_name(step) == transformers.PIPELINE
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
        for column, values in zip(places, known, strict=True):
            if words := {str(value) for value in values if isinstance(value, str)}:
                texts.setdefault(column, set()).update(words)


def _keeps_columns(step: Any, width: int) -> bool:
    if transformers.is_absent(step):
        return True
    imputer = class_name(step).endswith(".SimpleImputer")
    return imputer and len(step.get_feature_names_out()) == width
