"""Takes fitted wrappers apart: their forests, and where the scores of each one are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import SCORES
from skforge.compiler.frontends import answers_itself, read_forests
from skforge.compiler.frontends.base import Frontend, register, unwrap
from skforge.compiler.frontends.members import (
    CALIBRATED,
    CONSTANT,
    ONE_VS_REST,
    REGRESSORS,
    fitted_members,
    is_wrapper,
    kind_of,
)
from skforge.compiler.frontends.wrappers.join import joined, one_output, same_kind
from skforge.exceptions import UnsupportedModelError


@dataclass(slots=True, eq=False)
class Part:
    """A fitted wrapper with its members, or a forest inside one.

    Parameters
    ----------
    model : estimator
        Without the ``FrozenEstimator`` and the search around it.
    inside : tuple of Part
        The members of a wrapper.
    forests : tuple of Forest
        Those of a model that is no wrapper: one, or those of a pipeline that ends in a
        wrapper; () for a constant.
    only : int or None
        The only output that the wrapper around it asks for.
    places : list of slice
        For each forest, the columns of its scores among those of the whole wrapper.
    """

    model: Any
    inside: tuple[Part, ...] = ()
    forests: tuple[Forest, ...] = ()
    only: int | None = None
    places: list[slice] = field(default_factory=list)

    def leaves(self) -> Iterator[Part]:
        """Yield the parts that have forests, in the wrapper's order."""
        if self.forests:
            yield self
        for one in self.inside:
            yield from one.leaves()


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A fitted wrapper taken apart; its raw scores are those of ``forests``."""

    root: Part
    forests: tuple[Forest, ...]


def taken_apart(model: Any) -> Wrapped:
    """Return the parts of a fitted wrapper, and their forests, joined by kind."""
    root = _part(model)
    groups: dict[Any, list[tuple[Part, int]]] = {}
    for part in root.leaves():
        part.places = [slice(0)] * len(part.forests)
        for number, forest in enumerate(part.forests):
            # joined, every leaf would hold zeros for the outputs of all the others
            apart = id(forest) if part.only is None and forest.vector_leaves else None
            key = *same_kind(forest), apart
            groups.setdefault(key, []).append((part, number))
    if not groups:
        raise UnsupportedModelError(
            f"All members of {type(model).__name__} are constants, so there is no "
            "forest to compile."
        )
    forests = []
    start = 0
    for members_of_kind in groups.values():
        chosen = []
        for part, number in members_of_kind:
            forest = part.forests[number]
            own = forest if part.only is None else one_output(forest, part.only)
            part.places[number] = slice(start, start + own.n_outputs)
            start += own.n_outputs
            chosen.append(own)
        forests.append(joined(chosen))
    return Wrapped(root, tuple(forests))


def is_whole(model: Any) -> bool:
    """Tell whether the scores of a fitted wrapper are its answers.

    They are those of MultiOutputRegressor over regressors that predict their scores.
    """
    return kind_of(model) == REGRESSORS and has_answers(taken_apart(model))


def has_answers(wrapped: Wrapped) -> bool:
    """Tell whether a MultiOutputRegressor predicts the scores of one forest."""
    root = wrapped.root
    plain = all(
        len(one.forests) == 1
        and one.forests[0].outputs == SCORES
        and one.forests[0].task == "regression"
        and one.forests[0].n_outputs == 1
        and not answers_itself(one.model)
        for one in root.inside
    )
    one_forest = len(wrapped.forests) == 1 and len(root.inside) > 1
    return kind_of(root.model) == REGRESSORS and one_forest and plain


def _part(model: Any, asks_one: bool = False) -> Part:
    model = unwrap(model)
    if is_wrapper(model):
        one = kind_of(model) in (CALIBRATED, ONE_VS_REST)
        return Part(model, tuple(_part(each, one) for each in fitted_members(model)))
    if kind_of(model) == CONSTANT:
        return Part(model)
    forests = read_forests(model)
    only = 1 if asks_one and len(forests) == 1 and _is_pair(forests[0]) else None
    return Part(model, forests=forests, only=only)


def _is_pair(forest: Forest) -> bool:
    """Tell whether a forest's scores are the probabilities of two classes."""
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
    """Read the first of a fitted wrapper's forests."""
    if iteration_range is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__}.predict takes no iteration_range; leave it out."
        )
    return load_all(model)[0]


def load_all(model: Any) -> tuple[Forest, ...]:
    """Read the forests of a fitted wrapper's members, those of a kind as one."""
    return taken_apart(model).forests


register(
    Frontend(
        "sklearn wrappers",
        (),
        is_wrapper,
        load,
        load_all=load_all,
        is_whole=is_whole,
    )
)
