"""Which rows a model takes, as plain data, for files and tables of other systems."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.frontends.base import class_name, is_compiled, unwrap
from skforge.frontends.members import fitted_members, has_members
from skforge.frontends.pipeline import transformers
from skforge.rows.readers import reader_of
from skforge.sources.base import Source, given_names, unplaced
from skforge.sources.find import read_model, source_of
from skforge.sources.fitted import model_of, start_of
from skforge.sources.row_facts import RowFacts

#: As pickled queries of Polars call it.
RowSpec = RowFacts


def row_spec(model: Any) -> RowFacts:
    """Return what a model takes; InvalidInputError if it does not know its width."""
    ours, source = is_compiled(model), None
    inner = model_of(model) if ours else getattr(model, "forest", model)  # a module's
    inner = unwrap(inner)
    try:
        if not ours or start_of(model) is None:
            forest = model.forest_ if ours else read_model(inner)
            source = source_of(inner, forest)
    except UnsupportedModelError:
        if not has_members(inner):
            raise
    named = getattr(inner, "feature_names_in_", None)
    names = None if named is None else tuple(map(str, named))
    if source is not None:
        return _of_source(source, names)
    width = getattr(inner, "n_features_in_", None)
    if width is None:
        raise InvalidInputError(
            "The model does not know how many columns its rows have, so they cannot "
            "be taken from a file or a table."
        )
    used: set[int] = set()
    texts: dict[int, set[str]] = {}
    _look(inner, range(width), used, texts)
    return RowFacts(int(width), names, frozenset(used), texts, steps=True, whole=True)


def _of_source(source: Source, names: tuple[str, ...] | None) -> RowFacts:
    forest, used = source.forest, None
    facts = replace(
        source.facts,
        width=forest.n_columns,
        names=given_names(names or forest.column_names),
        dtype=forest.input_dtype,
    )
    if facts.steps:
        with suppress(InvalidInputError):  # no names
            if (columns := source.columns()) is not None:
                used = frozenset(rule.place for rule in columns.rules)
        return replace(facts, used=used)
    lists = {i: labels for i, labels in enumerate(forest.category_names) if labels}
    own_lists = forest.source in ("xgboost", "lightgbm")
    if forest.dropped_columns:
        used = frozenset(range(forest.n_columns)) - forest.dropped_columns
    return replace(
        facts,
        used=used,
        categories=lists,
        index_dtypes={i: kind for i, kind in enumerate(source.index_dtypes) if kind},
        unread=unplaced(forest) if forest.lacks_columns else "",
        hashed=reader_of(forest).spelled_booleans(),
        by_value=bool(lists) or (not own_lists and forest.category_offset[-1] > 0),
        wider=forest.wider_rows,
        underscores=forest.source == "lightgbm",
    )


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
