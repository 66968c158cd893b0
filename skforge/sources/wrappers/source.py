"""Adapter for scikit-learn's wrappers: rows of their members, answers of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
)
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows
from skforge.frontends import members as kinds
from skforge.frontends import read_forests
from skforge.frontends.base import class_name, is_pipeline, unwrap
from skforge.frontends.wrappers.model import (
    WrappedPart,
    has_answers,
    taken_apart,
)
from skforge.outputs.steps import by_column, in_order
from skforge.rows.frames import placed
from skforge.rows.known_forms import ReadForm
from skforge.rows.plain import ReadArray
from skforge.runtime.mappings import MappingColumns
from skforge.sources import base
from skforge.sources.pipeline import nested_parts
from skforge.sources.row_facts import of_all
from skforge.sources.wrappers import nodes
from skforge.sources.wrappers.nodes import Constant, Leaf, Node

_NODES: dict[str, Callable[[Any, Sequence[Node]], Node]] = {
    kinds.CALIBRATED: nodes.Calibrated,
    kinds.FIXED: nodes.Threshold,
    kinds.TUNED: nodes.Threshold,
    kinds.TARGET: nodes.TransformedTarget,
    kinds.REGRESSORS: nodes.MultiOutput,
    kinds.CLASSIFIERS: nodes.MultiOutput,
    kinds.ONE_VS_REST: nodes.OneVsRest,
    kinds.VOTES: nodes.Votes,
    kinds.MEAN: nodes.MeanVote,
}

#: Attributes with a transformer of targets, or encoders of labels.
_HELPERS = ("transformer_", "le_", "label_binarizer_")


@base.register
class WrapperSource(base.Source):
    """A fitted wrapper around forests.

    Rows are read as all its forests read them; the wrapper itself answers for rows on
    which they do not agree.
    """

    kind = "wrapper"

    def __init__(
        self,
        model: Any,
        forest: Any,
        sources: Mapping[int, base.Source] = MappingProxyType({}),
    ) -> None:
        def forests_of(member: Any) -> tuple[Forest, ...]:
            source = sources.get(id(member))
            if source is None:
                return tuple(_placed(part, forest) for part in read_forests(member))
            return source.forest, *source.answers.more

        super().__init__(model, forest)
        parts = taken_apart(self.origin.whole, forests_of)
        self.forest = forest = forest or parts.forests[0]
        self._sources = sources
        if parts.forests[0].n_outputs != forest.n_outputs:
            raise InvalidModelError(
                f"The forest of this {type(model).__name__} was made by another "
                "version of skforge; fit the CompiledForest again."
            )
        self._leaves: list[Leaf] = []
        self._constants = False
        try:
            root = self._node(parts.root)
        except (base.UnsureError, AttributeError, TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"This {type(model).__name__} does not compute its answers as others "
                "of its class do; CompiledForest compiles its members alone."
            ) from error
        inside = [leaf.source for leaf in self._leaves]
        self._pipelines = [source for source in inside if source.facts.has_forms]
        own_logs = any(s.answers.log_proba != "probabilities" for s in inside)
        self.answers = base.Answers(
            log_proba="model" if own_logs else "probabilities",
            more=parts.forests[1:],
            root=root,
            by_members=not has_answers(parts),
            by_column=has_answers(parts),  # a target is a row of what becomes a matrix
        )
        self._n_scores = 1 + max(int(leaf.columns.max()) for leaf in self._leaves)
        dtypes = [part.input_dtype for part in parts.forests]
        self._widest = max(dtypes, key=lambda dtype: dtype.itemsize)
        self._readers = _distinct(inside)
        self._take_what_all_take()

    def _take_what_all_take(self) -> None:
        facts = of_all([reader.facts for reader in self._readers])
        said = {reader.warning for reader in self._readers}
        quiet = said == {""} or (len(said) == 1 and not self._constants)
        self.facts = replace(
            facts,
            direct=quiet and facts.direct,
            on_device=not self.forest.is_encoded,
            has_forms=bool(self._pipelines),
        )

    def _node(self, part: WrappedPart) -> Node:
        if part.forests:
            source = self._sources.get(id(part.model))
            source = source or base.member_source(part.model, part.forests[0])
            self._leaves.append(Leaf(part, source))
            return self._leaves[-1]
        model = _private_copy(part.model)
        if class_name(model) == kinds.CONSTANT:
            self._constants = True
            return Constant(model)
        inside = [self._node(member) for member in part.inside]
        return _NODES[class_name(model)](model, inside)

    @classmethod
    def detects(cls, model: Any) -> bool:
        return kinds.is_wrapper(model)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        traces = [model, *vars(model).values()]
        helpers = [getattr(model, name, None) for name in _HELPERS]
        for fold in getattr(model, "calibrated_classifiers_", ()):
            traces += [fold, *vars(fold).values()]
            helpers += fold.calibrators
            for each in fold.calibrators:  # isotonic ones answer with copies in f_
                traces += vars(getattr(each, "f_", each)).values()
        traces += nested_parts(helpers)
        for member in kinds.fitted_members(model):
            inner = unwrap(member)
            traces += [member, inner]
            traces += base.member_traces(inner)
        return traces

    @property
    def warning(self) -> str:
        return self._readers[0].warning

    def takes(self, X: base.Array) -> bool:
        return all(reader.takes(X) for reader in self._readers)

    def reader(self, X: Any, most: int) -> tuple[ReadForm, str] | None:
        if len(self._readers) == 1 and not self._constants:
            return self._readers[0].reader(X, most)
        return super().reader(X, most)

    def read(self, X: Any) -> ReadArray | None:
        first, *others = self._readers
        read = first.read(X)
        for reader in others:
            other = reader.read(X)
            if read is None or other is None or other[1] != read[1]:
                return None
            narrow, wide = sorted((other[0], read[0]), key=lambda x: x.dtype.itemsize)
            with np.errstate(all="ignore"):
                same = wide is narrow or np.array_equal(
                    wide.astype(narrow.dtype, copy=False), narrow, equal_nan=True
                )
            if not same:
                return None
            read = wide, read[1]
        if read is not None and read[1] and self._constants:
            return None  # they warn in another name
        return read

    def form_of(self, X: Any) -> Any:
        forms = tuple(source.form_of(X) for source in self._pipelines)
        return forms[0] if len({*forms}) == 1 else forms or None

    def knows(self, form: Any) -> bool:
        return all(source.knows(each) for source, each in self._each(form))

    def of_form(self, form: Any) -> base.Source | None:
        """Return an adapter of pipelines' forests for a form, or itself for its own."""
        adapted: dict[int, base.Source] = {}
        for source, each in self._each(form):
            read = source if source.knows(each) else source.of_form(each)
            if read is None:
                return None
            if read is not source:
                adapted[id(source)] = read
        if not adapted:
            return self
        leaves = self._leaves
        sources = {
            id(leaf.model): adapted.get(id(leaf.source), leaf.source) for leaf in leaves
        }
        return WrapperSource(self.held, None, sources)

    def _each(self, form: Any) -> Iterable[tuple[base.Source, Any]]:
        forms = form if type(form) is tuple else (form,) * len(self._pipelines)
        return zip(self._pipelines, forms, strict=True)

    def sample(self, dtype: Any) -> Any:
        return self._readers[0].sample(dtype)

    def columns(self) -> MappingColumns | None:
        if any(reader.forest.lacks_columns for reader in self._readers):
            raise InvalidInputError(
                "the rows are mappings, and the LightGBM models in this "
                f"{self.class_name} do not tell which columns hold categories; pass a "
                "pandas frame whose columns have the dtypes of training."
            )
        columns = [reader.columns() for reader in self._readers]
        first = columns[0]
        if len(columns) == 1 or first is None:
            return first
        every = [each for each in columns if each is not None]
        rules = [rule for each in every for rule in each.rules]
        coded = {rule.place for rule in rules if rule.table is not None}
        of_place = {rule.place: rule for rule in rules[::-1]}
        rules = [
            replace(rule, table={}, missing=None) if column in coded else rule
            for column, rule in sorted(of_place.items())
        ]
        ignores = all(each.ignores for each in every)
        return replace(first, rules=tuple(rules), ignores=ignores, by_frame=True)

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method == "predict_raw":
            return self._together(lambda leaf: leaf.source.raw_of(X))
        return super()._call(method, X, **params)

    def _raw(self, rows: base.Array) -> Any:
        def scores(leaf: Leaf) -> Any:
            with np.errstate(all="ignore"):
                cast = rows.astype(leaf.forest.input_dtype, copy=False)
            return leaf.source.raw(cast)

        return self._together(scores)

    def _together(self, scores: Callable[[Leaf], Any]) -> base.Array:
        parts = [np.asarray(scores(leaf)) for leaf in self._leaves]
        raw = np.empty((len(parts[0]), self._n_scores), np.result_type(*parts))
        # of no rows, XGBoost 3.4 returns no columns either
        for leaf, part in zip(self._leaves, parts if len(raw) else (), strict=False):
            part = part if part.ndim == 2 else part[:, None]
            raw[:, leaf.columns] = part if leaf.only is None else part[:, [leaf.only]]
        if self._n_scores == 1:
            return raw[:, 0]
        of_forest = not self.answers.by_members  # whose rules have an order
        return in_order(raw, of_forest and by_column(self.forest.answers, "raw"))

    def drawn(self, n: int, missing: float) -> base.Array:
        gap = np.full((1, self.forest.n_features), np.nan, self._widest)
        more = self.answers.more
        missing = 0.05 if self.takes(gap) else 0.0  # tags of wrappers do not say
        rows = [draw_rows(part, n, 0, missing) for part in (self.forest, *more)]
        for leaf in self._leaves:
            if is_pipeline(leaf.model) or leaf.source.answers.by_members:
                rows.append(leaf.source.drawn(n, missing))
        every = np.concatenate([part.astype(self._widest) for part in rows])
        for _ in range(2):  # a text's code for one member may be too large for another
            for leaf in self._leaves:
                every = leaf.source.repaired(every)
        fine = np.array([self.takes(every[i : i + 1]) for i in range(len(every))])
        for leaf in self._leaves:
            fixed = leaf.source.repaired(every)
            fine &= ((fixed == every) | (np.isnan(fixed) & np.isnan(every))).all(axis=1)
        return every[fine]

    def as_given(self, rows: base.Array) -> Any:
        return self._readers[0].as_given(rows)

    def _outputs(self, X: Any) -> dict[str, Any]:
        serial, answers = self._serial(), {}
        for name in base.METHODS:
            with suppress(Exception):  # users' functions raise what they like
                answers[name] = getattr(serial, name)(X)
        return answers

    def _serial(self) -> Any:
        return _serial(self.answers.root)


def _placed(forest: Forest, known: Forest | None) -> Forest:
    """Return a forest whose categories are in the columns that another one knows."""
    if known is None or not forest.lacks_columns or not any(known.category_names):
        return forest
    at = [i for i, names in enumerate(known.category_names) if names]
    same = tuple(known.category_names[i] for i in at) == forest.category_lists
    told = known.source in ("lightgbm", "xgboost")  # of each column of categories
    return placed(forest, at) if same and told else forest


def _private_copy(model: Any) -> Any:
    """Copy what a wrapper computes with, but members; share what cannot be copied."""
    copied = copy.copy(model)
    shared = (
        [*kinds.fitted_members(model), *kinds.members_of(model)]
        if kinds.is_wrapper(model)
        else []
    )
    memo = {id(value): value for value in shared}
    for name, value in vars(model).items():
        with suppress(Exception):  # objects of users may raise anything
            vars(copied)[name] = copy.deepcopy(value, memo)
    return copied


def _serial(node: Node) -> Any:
    if isinstance(node, Leaf):
        return node.source._serial()
    if isinstance(node, Constant):
        return node.model
    serial = kinds.with_members(
        node.model, [_serial(member) for member in node.members]
    )
    if hasattr(serial, "n_jobs"):
        serial.n_jobs = None
    return serial


def _distinct(sources: Sequence[base.Source]) -> list[base.Source]:
    distinct: dict[Any, base.Source] = {}
    for source in sources:
        plain = not kinds.is_wrapper(source.model) and not is_pipeline(source.model)
        plain = plain and source.facts.takes_floats  # objects are in no rule
        rules = (type(source), source.reading(), repr(source.rules))
        limits = (source.facts.declines, source.facts.direct)
        coded = source.forest.category_names, source.forest.category_lists
        key = (*rules, *limits, *coded) if plain else id(source)
        distinct.setdefault(key, source)
    return list(distinct.values())
