"""Takes fitted wrappers apart: their forests, and where the scores of each one are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array, Int32s
from skforge.compiler.forest.forest import Forest, deduplicate_predicates
from skforge.compiler.forest.outputs import SCORES
from skforge.compiler.frontends import answers_itself, read_forests
from skforge.compiler.frontends import members as kinds
from skforge.compiler.frontends.arrays import Sets, offsets
from skforge.compiler.frontends.base import Frontend, class_name, register, unwrap
from skforge.exceptions import UnsupportedModelError

ForestsOf = Callable[[Any], tuple[Forest, ...]]

#: Fields of a forest that has nothing but scores.
_SCORES: dict[str, Any] = dict(
    outputs=SCORES, task="regression", output_sizes=(), class_labels=()
)


#: What forests must share to be joined, beside the marker of missing values.
_kind_of_forest = attrgetter(
    *("input_dtype", "accumulator_dtype", "divisor", "n_features", "category_names"),
    *("truncate_categories", "aggregate", "wider_rows"),
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


def joined(forests: Sequence[Forest]) -> Forest:
    if len(forests) == 1:
        return forests[0]
    first = forests[0]
    nodes = offsets([part.n_nodes for part in forests])[:-1]
    leaves = offsets([part.n_leaves for part in forests])[:-1]
    *outputs, width = offsets([part.n_outputs for part in forests]).tolist()
    wide = any(part.vector_leaves for part in forests)
    tests, index = _tests(forests)

    def together(name: str, start: Any = None) -> Array:
        """Return an array of all forests; of numbers from a start, -1 stays."""
        parts = [getattr(part, name) for part in forests]
        if start is not None:
            pairs = zip(parts, start, strict=True)
            parts = [np.where(x < 0, -1, x.astype(np.int64) + at) for x, at in pairs]
        return np.concatenate(parts)

    fields: dict[str, Any] = {
        name: together(name, start)
        for name, start in (
            *(("left", nodes), ("right", nodes), ("leaf", leaves)),
            *(("tree_output", outputs), ("leaf_value", None)),
            *(("source_node", None), ("base", None)),
        )
        if not wide or name not in ("tree_output", "leaf_value")
    }
    if wide:
        fields["tree_output"] = np.full(sum(part.n_trees for part in forests), -1)
        values = [_wide(o, width, at) for o, at in zip(forests, outputs, strict=True)]
        fields["leaf_value"] = np.concatenate(values)
    ends = [o.tree_offset[1:] + at for o, at in zip(forests, nodes, strict=True)]
    tests_before = offsets([part.n_predicates for part in forests])[:-1]
    tested = together("predicate", tests_before)
    covered = all(len(part.cover) for part in forests)
    folded = any(len(part.source_feature) for part in forests)
    return replace(
        first,
        **tests,
        **fields,
        **_SCORES,
        tree_offset=np.concatenate([[0], *ends]),
        predicate=np.append(index, np.int32(-1))[tested],
        cover=together("cover") if covered else np.zeros(0),
        source_feature=together("node_feature" if folded else "source_feature"),
    )


def _tests(forests: Sequence[Forest]) -> tuple[dict[str, Any], Int32s]:
    sets: Sets = {}
    first = 0
    for forest in forests:
        offset = forest.category_offset
        for test in np.flatnonzero(np.diff(offset)).tolist():
            sets[first + test] = forest.category_words[offset[test] : offset[test + 1]]
        first += forest.n_predicates
    names = "feature", "comparison", "threshold", "missing", "missing_left"
    columns = {k: np.concatenate([getattr(o, k) for o in forests]) for k in names}
    return deduplicate_predicates(**columns, categories=sets)


def _wide(forest: Forest, width: int, at: int) -> Array:
    """Return leaves of all outputs; -0.0, of another forest, changes no number."""
    values = np.full((forest.n_leaves, width), -0.0, forest.accumulator_dtype)
    if forest.vector_leaves:
        values[:, at : at + forest.n_outputs] = forest.leaf_value
        return values
    leaves = np.flatnonzero(forest.leaf >= 0)
    tree = np.searchsorted(forest.tree_offset, leaves, side="right") - 1
    number = forest.leaf[leaves]
    values[number, at + forest.tree_output[tree]] = forest.leaf_value[number, 0]
    return values


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
            alone = forest.scaling or (part.only is None and forest.vector_leaves)
            apart = id(forest) if alone else None
            key = *_kind_of_forest(forest), repr(forest.missing_value), apart
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
            member = forest if part.only is None else one_output(forest, part.only)
            part.places[number] = slice(start, start + member.n_outputs)
            start += member.n_outputs
            chosen.append(member)
        forests.append(joined(chosen))
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
        inside = (
            _part(each, forests_of, single) for each in kinds.fitted_members(model)
        )
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
