"""Assigns LightGBM's lists of categories to features, where that is certain.

``pandas_categorical`` has a list for each column of the training frame that had the
dtype category, in order, and does not say which columns these were. They need not be
the features that are tested by sets: ordered categories are numbers to LightGBM, and
users name others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge._typing import Array

#: The codes that a categorical feature has seen, such as "-1:0:2:1".
_CODES = re.compile(r"-?[0-9]{1,10}(:-?[0-9]{1,10})*", re.ASCII)


def named(
    lists: Sequence[Sequence[Any]] | None, parts: tuple[str, str], n_features: int
) -> dict[str, Any]:
    """Return the fields of a forest with the names of categories.

    ``parts`` are ``feature_infos`` of a model's text, and its parameter
    ``categorical_feature``.
    """
    if not lists:
        return {}
    names = tuple(tuple(map(_name, each)) for each in lists)
    infos, tested = parts[0].split(" "), parts[1]
    infos = infos if len(infos) == n_features else ["none"] * n_features
    places = _places([*map(len, names)], infos)
    sure = [at[0] for at in places if len(at) == 1]
    if len(sure) < len(names) and all(map(_are_texts, names)):
        sure = _of_texts(places, tested)
    if len(sure) < len(names) or not all(names):
        return {"category_lists": names}
    found = dict(zip(sure, names, strict=True))
    return {"category_names": tuple(found.get(i, ()) for i in range(n_features))}


def _name(value: Any) -> Any:
    # frames have no such names, but the list keeps its length
    return value if isinstance(value, (str, int, float)) else repr(value)


def _places(sizes: Sequence[int], infos: Sequence[str]) -> list[list[int]]:
    """Return for each list the features that it may belong to, of those in order."""
    least, most = np.array([*map(_range, infos)]).T
    fits = [(least >= 0) & (most < size) for size in sizes]
    first, last = _earliest(fits), _earliest([fit[::-1] for fit in fits[::-1]])[::-1]
    at, n = np.arange(len(infos)), len(infos)
    places = []
    for k, fit in enumerate(fits):
        after = first[k - 1] if k else -1
        before = n - 1 - last[k + 1] if k + 1 < len(fits) else n
        places.append(np.flatnonzero(fit & (at > after) & (at < before)).tolist())
    return places


def _earliest(fits: Sequence[Array]) -> list[int]:
    """Return the first feature that each list can have, after those before it."""
    found, after = [], -1
    for fit in fits:
        later = np.flatnonzero(fit[after + 1 :])
        after = after + 1 + int(later[0]) if len(later) else len(fit)
        found.append(after)
    return found


def _range(info: str) -> tuple[float, float]:
    """Return the least and the greatest code of a feature; 0 and -1 of an unknown one.

    A feature that cannot have been codes has -1 and infinity.
    """
    if _CODES.fullmatch(info):  # -1 is a missing one
        codes = [*map(int, info.split(":"))]
        return 0.0, float(max(codes))
    if not (info.startswith("[") and info.endswith("]")):
        return 0.0, -1.0
    try:
        least, most = map(float, info[1:-1].split(":"))
    except ValueError:
        return 0.0, -1.0
    whole = least.is_integer() and most.is_integer()
    return (least, most) if whole else (-1.0, float("inf"))


def _are_texts(names: Sequence[Any]) -> bool:
    return all(isinstance(name, str) and not _spells_number(name) for name in names)


def _spells_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name.strip().lower() in ("", "true", "false")
    return True


def _of_texts(places: Sequence[Sequence[int]], tested: str) -> list[int]:
    """Return the features tested by sets if a wrong one would always be noticed.

    Its rows then have numbers where these lists have texts, which readers refuse. But
    no feature may have two lists: a text may be in both.
    """
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", tested, re.ASCII):
        return []
    features = [*map(int, tested.split(","))]
    if len(features) != len(places) or sorted({*features}) != features:
        return []
    alone = all(
        (feature in at) == (k == j)
        for k, feature in enumerate(features)
        for j, at in enumerate(places)
    )
    return features if alone else []
