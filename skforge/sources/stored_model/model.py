"""Models kept as plain data: forest, labels, row rules and scikit-learn's tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from skforge.exceptions import SourceNeededError
from skforge.forest.forest import Forest
from skforge.frontends.base import Frontend, register

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

#: Methods that a stored model may offer.
METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "decision_function"),
    *("score_samples", "apply", "transform", "get_feature_names_out", "score"),
    *("predict_cumulative_hazard_function", "predict_survival_function"),
)


@dataclass(frozen=True)
class StoredRules:
    """What an adapter keeps of a model beside its forest, as plain data."""

    def suits(self, forest: Forest) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A forest and what the source model's methods need beyond it, as plain data.

    It replaces the source model in a ``CompiledForest`` that was loaded from a
    ``.skforge`` file or stripped by ``drop_estimator``.
    """

    forest: Forest
    class_name: str
    #: The adapter that reads its rows, and the rules that they follow.
    kind: str = "forest"
    rules: StoredRules = field(default_factory=StoredRules)
    #: The methods, fitted attributes and scikit-learn tags that are kept.
    methods: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    #: The methods that the model has and that need it.
    left_out: tuple[str, ...] = ()
    #: The dtype and shape of each method's answer to 0 rows.
    of_no_rows: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    #: The scikit-learn wrapper that computes the answers, around stored members, and
    #: the forests whose scores it gets after those of the first.
    whole: Any = None
    more: tuple[Forest, ...] = ()
    #: The same with forests for other forms of rows; see ``Source.of_form``.
    twins: Mapping[str, StoredModel] = field(default_factory=dict)
    #: What its leaves hold beside values, as arrays; see ``LeafSource``.
    leaves: Any = None

    def __repr__(self) -> str:
        trees, features = self.forest.n_trees, self.forest.n_columns
        return f"<{self.class_name}, stored: {trees:,} trees, {features:,} features>"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):  # copy and pickle ask before state is set
            attributes = self.__dict__.get("attributes", {})
            if name in attributes:
                return attributes[name]
            if name in self.__dict__.get("methods", ()):
                names = name == "get_feature_names_out"
                return self._names_out if names else partial(self.call, name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def _names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Name the columns of an embedding's matrix; no other model offers it."""
        if input_features is not None:
            self.refuse("get_feature_names_out")
        forest = self.forest
        names = np.empty(forest.n_leaves, object)
        for tree, first in enumerate(forest.tree_offset[:-1].tolist()):
            nodes = slice(first, int(forest.tree_offset[tree + 1]))
            leaf, number = forest.leaf[nodes], forest.source_node[nodes]
            columns = forest.leaf_value[leaf[leaf >= 0], 0].astype(np.int64)
            names[columns] = [
                f"randomtreesembedding_{tree}_{node}" for node in number[leaf >= 0]
            ]
        return names

    def explain(self, name: str) -> None:
        if name == "estimator_" or name in self.left_out:
            self.refuse(name)

    def refuse(self, what: str, why: str = "", *, once: bool = False) -> NoReturn:
        """Raise SourceNeededError; ``once``: predicting such rows first may help."""
        mend = "predict such rows once before you save, or " * once
        mend = f"; {mend}use the original model."
        if why.endswith("."):  # with a conversion
            mend = mend.replace("; ", ", " if once else ", or ", 1)
            why = why[:-1]
        raise SourceNeededError(
            f"{what} needs the {self.class_name} itself, which this CompiledForest "
            f"was saved without{why and ': ' + why}{mend}"
        )

    def __sklearn_tags__(self) -> Tags:
        import sklearn.utils
        from sklearn.base import BaseEstimator

        check_tags(self.tags)
        tags: Tags = sklearn.utils.get_tags(BaseEstimator())
        known = {tag.name for tag in fields(sklearn.utils.Tags)}
        for name, value in self.tags.items():
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

    def validator(self, class_name: str = "", *, names: bool = True) -> Any:
        tagged = {"tags": self.tags, "__sklearn_tags__": StoredModel.__sklearn_tags__}
        validator: Any = type(class_name or self.class_name, (), tagged)()
        for name in ("n_features_in_", "feature_names_in_")[: 1 + names]:
            if name in self.attributes:
                setattr(validator, name, self.attributes[name])
        return validator

    def answer_to_no_rows(self, X: Any, method: str) -> NDArray[Any] | None:
        stored = self.of_no_rows.get(method)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if stored is None or shape != (0, self.forest.n_columns):
            return None
        return np.empty(stored[1], stored[0])

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Answer for 0 rows; raise for all other rows, as there is no live model."""
        if params:
            self.refuse(f"{method} with {', '.join(sorted(params))}")
        answer = self.answer_to_no_rows(X, method)
        return self.refuse(f"{method} of these rows") if answer is None else answer


def plain_tags(tags: Tags) -> dict[str, Any]:
    return {name: value for name, value in asdict(tags).items() if _is_json(value)}


def check_tags(stored: Mapping[str, Any]) -> None:
    """Raise ValueError unless tags can be made of these; imports no scikit-learn."""
    for name, (_, optional) in _GROUPS.items():
        value = stored.get(name, {})
        if not isinstance(value, Mapping) and not (optional and value is None):
            raise ValueError(f"{name} is not a record")


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, str)


def _is_whole(model: StoredModel) -> bool:
    if model.whole is None:
        return True
    from skforge.frontends.wrappers.model import is_whole

    return is_whole(model.whole)


register(
    Frontend(
        "sklearn models, stored",
        (),
        lambda model: isinstance(model, StoredModel),
        lambda model, _: model.forest,
        load_all=lambda model: (model.forest, *model.more),
        is_whole=_is_whole,
    )
)
