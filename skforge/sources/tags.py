"""scikit-learn's tags as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.utils import Tags

#: The classes of tags in tags, and whether a model may lack them.
_GROUPS = {
    "target_tags": ("TargetTags", False),
    "transformer_tags": ("TransformerTags", True),
    "classifier_tags": ("ClassifierTags", True),
    "regressor_tags": ("RegressorTags", True),
    "input_tags": ("InputTags", False),
}


class Validator:
    tags: Mapping[str, Any]  # as they are stored

    def __sklearn_tags__(self) -> Tags:
        return tags_from(self.tags)


def plain_tags(tags: Tags) -> dict[str, Any]:
    return {name: value for name, value in asdict(tags).items() if _is_json(value)}


def check_tags(stored: Mapping[str, Any]) -> None:
    """Raise ValueError unless tags can be made of these; imports no scikit-learn."""
    for name, (_, optional) in _GROUPS.items():
        value = stored.get(name, {})
        if not isinstance(value, Mapping) and not (optional and value is None):
            raise ValueError(f"{name} is not a record")


def tags_from(stored: Mapping[str, Any]) -> Tags:
    import sklearn.utils
    from sklearn.base import BaseEstimator

    check_tags(stored)
    tags: Tags = sklearn.utils.get_tags(BaseEstimator())
    known = {tag.name for tag in fields(sklearn.utils.Tags)}
    for name, value in stored.items():
        if name in _GROUPS and value is not None:
            group = getattr(sklearn.utils, _GROUPS[name][0])
            names = {tag.name for tag in fields(group)}
            value = {key: value[key] for key in value if key in names}
            if name == "target_tags":
                value = {"required": False, **value}
            value = group(**value)
        if name in known:
            setattr(tags, name, value)
    return tags


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, str)
