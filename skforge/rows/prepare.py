"""Makes arrays for the kernels of rows of any class, by the forest alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.engine.rows import forest_rows, is_ready
from skforge.exceptions import InvalidInputError
from skforge.forest import mistakes
from skforge.forest.forest import Forest
from skforge.rows import frames, sparse_rows

#: Libraries that compare the names of columns; scikit-learn if all are texts.
COMPARES = ("catboost", "sklearn", "skforge", "xgboost")


def prepare_rows(forest: Forest, X: Any) -> Array:
    """Return ``X`` as an array that the kernels can read, copied only if necessary.

    The array is in ``forest.input_dtype``, cast as in the source, and each row is
    contiguous. The names of a frame's columns and categories must be the model's, if it
    has any.
    """
    if is_ready(forest, X):
        return X  # the checks below cost more than walking one row
    if (places := places_in(forest, X)) is not None:
        X = with_dropped(forest, X, places)
    if isinstance(X, np.ndarray):
        rows = X
    elif frames.is_pandas(X) or frames.is_table(X):
        rows = _of_frame(forest, X)
    elif sparse_rows.is_sparse(X):
        rows = np.concatenate([*sparse_rows.blocks_of(forest, X)])
    else:
        rows = _as_array(X, forest.n_features)
    return forest_rows(forest, rows, X)


def _of_frame(forest: Forest, X: Any) -> Array:
    columns = frames.texts_of(frames.labels_of(X), forest.source == "xgboost")
    if not forest.wider_rows:
        mistakes.check_shape((len(X), len(columns)), forest.n_features)
    why = mistakes.name_mistake(columns, forest.feature_names or columns)
    if why and _names_count(forest, X):
        raise InvalidInputError(why)
    if forest.source not in ("xgboost", "lightgbm") and not any(forest.category_names):
        return _as_array(X, forest.n_features)  # categories are given by value
    coded = _columns(*frames.about_categories(forest))
    unseen = None if forest.source == "xgboost" else np.nan
    with np.errstate(all="ignore"):
        return coded.numbers(X, forest.input_dtype, unseen=unseen)


def places_in(forest: Forest, X: Any) -> list[int] | None:
    """Return where a frame has the columns that a model with dropped ones still names.

    A number stands for a dropped one, which no tree tests. None: the model has dropped
    none, or CatBoost refuses the frame, which finds columns by name but categories
    where those of training were.
    """
    dropped, names = forest.dropped_columns, forest.column_names or ()
    if not dropped or not (frames.is_pandas(X) or frames.is_table(X)):
        return None
    labels = frames.column_names(X)
    place = {label: i for i, label in enumerate(labels)}
    kept = [i for i in range(len(names)) if i not in dropped]
    if len(place) < len(labels) or any(names[i] not in place for i in kept):
        return None
    if not keeps_categories(forest, ((i, place[names[i]]) for i in kept)):
        return None
    categories = {*np.flatnonzero(forest.is_category).tolist()}
    number = next((place[names[i]] for i in kept if i not in categories), None)
    if number is None:
        return None
    return [number if i in dropped else place[name] for i, name in enumerate(names)]


def keeps_categories(forest: Forest, places: Iterable[tuple[int, int]]) -> bool:
    """Tell whether categories come from places of categories, and numbers of others."""
    categories = {*np.flatnonzero(forest.is_category).tolist()}
    return all((i in categories) == (place in categories) for i, place in places)


def with_dropped(forest: Forest, X: Any, places: list[int]) -> Any:
    """Return a frame with the model's columns, named as in the forest."""
    names = [*(forest.column_names or ())]
    if frames.is_pandas(X):
        return X.iloc[:, places].set_axis(names, axis=1)
    if hasattr(X, "get_columns"):  # of polars
        columns = X.get_columns()
        named = zip(places, names, strict=True)
        return X.select([columns[i].alias(name) for i, name in named])
    return X.select(places).rename_columns(names)


def _names_count(forest: Forest, X: Any) -> bool:
    texts = all(isinstance(name, str) for name in frames.labels_of(X))
    return forest.source in COMPARES and (texts or forest.source != "sklearn")


_columns = lru_cache(8)(frames.FrameColumns)


def _as_array(X: Any, n_features: int) -> Array:
    if hasattr(X, "collect_schema") and not hasattr(X, "get_columns"):
        raise InvalidInputError("rows are a lazy frame; pass X.collect().")
    why = mistakes.kind_mistake(X, n_features)
    if why is not None:
        raise InvalidInputError(why)
    return mistakes.as_array(X)
