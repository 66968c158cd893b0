"""Takes fitted wrappers apart: their forests, and where the scores of each one are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from skforge.exceptions import UnsupportedModelError
from skforge.forest.combine import joined
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES
from skforge.frontends import answers_itself, read_forests
from skforge.frontends import members as kinds
from skforge.frontends.arrays import offsets
from skforge.frontends.base import Frontend, class_name, register, unwrap

ForestsOf = Callable[[Any], tuple[Forest, ...]]

#: Fields of a forest that has nothing but scores.
_SCORES: dict[str, Any] = dict(
    outputs=SCORES, task="regression", output_sizes=(), class_labels=()
)


#: What forests must share to be joined, beside the marker of missing values.
_kind_of_forest = attrgetter(
    *("input_dtype", "accumulator_dtype", "divisor", "n_features", "category_names"),
    *("truncate_categories", "aggregate", "wider_rows", "category_lists"),
)


def one_output(forest: Forest, output: int) -> Forest:
    return replace(
        forest,
        tree_output=np.zeros(forest.n_trees, np.int32),
        leaf_value=forest.leaf_value[:, output : output + 1],
        base=forest.base[output : output + 1],
        scaling=forest.scaling[:1] + forest.scaling[1 + output : 2 + output],
        **_SCORES,
    )


@dataclass(slots=True, eq=False)
class WrappedPart:
    """A fitted wrapper with its members, or a forest inside one."""

    model: Any  # without the ``FrozenEstimator`` and the search around it
    inside: tuple[WrappedPart, ...] = ()  # the members of a wrapper
    #: Those of a model that is no wrapper: one, or those of a pipeline that ends in a
    #: wrapper; () for a constant.
    forests: tuple[Forest, ...] = ()
    only: int | None = None  # the only output that the wrapper around it asks for
    #: For each forest, the columns of its scores among those of the whole wrapper.
    places: list[slice] = field(default_factory=list)

    def leaves(self) -> Iterator[WrappedPart]:
        if self.forests:
            yield self
        for part in self.inside:
            yield from part.leaves()


class Wrapped(NamedTuple):
    """A fitted wrapper taken apart; its raw scores are those of ``forests``."""

    root: WrappedPart
    forests: tuple[Forest, ...]


def taken_apart(model: Any, forests_of: ForestsOf = read_forests) -> Wrapped:
    """Return the parts of a fitted wrapper, and their forests, joined by kind.

    ``forests_of`` returns those of a model that is no wrapper.
    """
    root = _part(model, forests_of)
    groups: dict[Any, list[tuple[WrappedPart, int]]] = {}
    for part in root.leaves():
        part.places = [slice(0)] * len(part.forests)
        for number, forest in enumerate(part.forests):
            # joined, every leaf would hold zeros for the outputs of all the others
            alone = forest.scaling or forest.aggregate == "linear"
            alone = alone or (part.only is None and forest.vector_leaves)
            apart = id(forest) if alone else None
            key = *_kind_of_forest(forest), repr(forest.missing_value), apart
            groups.setdefault(key, []).append((part, number))
    if not groups:
        raise UnsupportedModelError(
            f"All members of {type(model).__name__} are constants, so there is no "
            "forest to compile."
        )
    forests: list[Forest] = []
    start = 0
    for members_of_kind in groups.values():
        chosen = []
        for part, number in members_of_kind:
            forest = part.forests[number]
            member = forest if part.only is None else one_output(forest, part.only)
            part.places[number] = slice(start, start + member.n_outputs)
            start += member.n_outputs
            chosen.append(member)
        if len(chosen) > 1:
            places = offsets([forest.n_outputs for forest in chosen])[:-1].tolist()
            base = np.concatenate([forest.base for forest in chosen])
            chosen = [joined(chosen, places, base=base, **_SCORES)]
        forests += chosen
    return Wrapped(root, tuple(forests))


def is_whole(model: Any) -> bool:
    """Tell whether scores are answers: those of regressors in MultiOutputRegressor."""
    return class_name(model) == kinds.REGRESSORS and has_answers(taken_apart(model))


def has_answers(wrapped: Wrapped) -> bool:
    root = wrapped.root
    plain = all(
        len(part.forests) == 1
        and part.forests[0].outputs == SCORES
        and part.forests[0].task == "regression"
        and part.forests[0].n_outputs == 1
        and not answers_itself(part.model)
        for part in root.inside
    )
    one_forest = len(wrapped.forests) == 1 and len(root.inside) > 1
    return class_name(root.model) == kinds.REGRESSORS and one_forest and plain


def _part(model: Any, forests_of: ForestsOf, asks_one: bool = False) -> WrappedPart:
    model = unwrap(model)
    if kinds.is_wrapper(model):
        single = class_name(model) in (kinds.CALIBRATED, kinds.ONE_VS_REST)
        members = kinds.fitted_members(model)
        inside = (_part(member, forests_of, single) for member in members)
        return WrappedPart(model, tuple(inside))
    if class_name(model) == kinds.CONSTANT:
        return WrappedPart(model)
    forests = forests_of(model)
    only = 1 if asks_one and len(forests) == 1 and _is_pair(forests[0]) else None
    return WrappedPart(model, forests=forests, only=only)


def _is_pair(forest: Forest) -> bool:
    spec = forest.outputs
    return (
        forest.classifies
        and forest.vector_leaves
        and forest.n_outputs == 2
        and len(forest.output_sizes) < 2
        and spec.probabilities == "scores"
        and spec.decision == "none"
    )


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    if iteration_range is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__}.predict takes no iteration_range; leave it out."
        )
    return load_all(model)[0]


def load_all(model: Any) -> tuple[Forest, ...]:
    return taken_apart(model).forests


_FRONTEND = Frontend("sklearn wrappers", (), kinds.is_wrapper, load, load_all=load_all)
register(replace(_FRONTEND, is_whole=is_whole))
