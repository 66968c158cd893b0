"""Adapters: one class per library, which converts rows as the library's models do.

An adapter is made from a live model, or from the plain-data rules that an artifact
keeps of one; both convert and check rows with the same code, and what differs is in
:mod:`~skforge.sources.origins`. An adapter declines rows of unknown kinds, and the
caller then calls the model's own method, so that values, warnings and exceptions are
the model's. Without a live model, an error is raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from skforge._compat import cached_property, no_warnings
from skforge._typing import Array as Array
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
    warn,
)
from skforge.forest.forest import Forest
from skforge.forest.outputs import AnswerSpec
from skforge.forest.reference import draw_rows, reference_raw
from skforge.frontends.base import class_names
from skforge.outputs.answers import answer, labels_of, of_scores
from skforge.outputs.steps import in_one_array, in_order
from skforge.rows.frames import FrameColumns, about_categories
from skforge.rows.known_forms import PassedOn, ReadForm, of_source, without
from skforge.rows.plain import PlainRows, ReadArray, Reading
from skforge.rows.readers import reader_of
from skforge.runtime.mapping_values import ColumnRule
from skforge.runtime.mappings import MappingColumns, without_names
from skforge.sources.origins import FromFile, Live, Stored
from skforge.sources.row_facts import RowFacts
from skforge.sources.stored_model.model import StoredModel, StoredRules

#: Methods whose answers follow from raw scores.
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


class UnsureError(Exception):
    """An answer is not certain here, so that the model itself must answer."""


def given_names(names: Any) -> tuple[Any, ...] | None:
    """Return feature names; None for those that LightGBM makes (Column_0, ...)."""
    if names is None or [*names] == [f"Column_{i}" for i in range(len(names))]:
        return None
    return tuple(names)


def unplaced(forest: Forest) -> str:
    """Return why values of categories cannot be read, and what to do."""
    n = len(forest.category_lists)
    return (
        f"LightGBM's file lists the categories of {n} column{'s'[: n > 1]} without "
        "saying which these are, so that a value might be taken for a code; pass a "
        "pandas frame whose columns have the dtypes of training, or give fit of "
        "CompiledForest the model and its training frame."
    )


#: Of fields that artifacts do not keep.
_LIVE = {"stored": False}


@dataclass(frozen=True, slots=True)
class Answers:
    """How a model's answers are made of raw scores and of leaf numbers."""

    labels: bool = True  # whether ``predict`` returns labels; a Booster's gives scores
    leaf_dtype: Literal["<i4", "<i8", "<f4", "<f8"] = "<i8"
    flat_leaves: bool = False  # whether ``apply`` drops their last axis
    #: Shape of one row's leaf numbers; None for one number per tree.
    leaf_shape: tuple[int, ...] | None = None
    #: What ``predict_log_proba`` follows from: the logarithm of ``predict_proba``, the
    #: raw scores by a rule of CatBoost's, or something that only the model knows.
    log_proba: Literal["probabilities", "scores", "model"] = "probabilities"
    #: Whether answers, or leaf numbers, lie in memory column by column, where the rules
    #: of the forest do not say so.
    by_column: bool = False
    leaves_by_column: bool = False
    #: What ``transform`` makes of raw scores, which are columns of ones.
    matrix: Literal["", "sparse", "dense"] = ""
    #: Further forests, whose raw scores follow those of the forest.
    more: tuple[Forest, ...] = field(default=(), metadata=_LIVE)
    #: The wrapper around several models, as a tree of its members.
    root: Any = field(default=None, metadata=_LIVE)
    #: Whether ``root`` computes the answers, not the rules of the forest.
    by_members: bool = field(default=False, metadata=_LIVE)

    def of_scores(self, forest: Forest, model: Any) -> Callable[..., Any]:
        """Return what makes a method's answer of raw scores, or raises UnsureError."""
        if self.by_members:
            return self._of_members
        of_forest = partial(answer, forest.answers, labels_of(forest.answers, model))
        if self.flat_leaves:
            return lambda method, raw: in_one_array(of_forest(method, raw))
        if not self.by_column:
            return of_forest
        return lambda method, raw: in_order(
            of_forest(method, raw), self.are_by_column(method)
        )

    def are_by_column(self, method: str) -> bool:
        """Tell of a method; models have none for raw scores, which have one order."""
        return self.by_column and method != "predict_raw"

    def _of_members(self, method: str, raw: Array) -> Any:
        if method == "predict_raw":
            return raw
        return self.root.answer(method, raw if raw.ndim == 2 else raw[:, None])

    @property
    def transforms(self) -> bool:
        """Whether ``transform`` follows from raw scores."""
        return bool(self.matrix) or getattr(self.root, "transforms", False)

    def one_hot(self, columns: Array, n_columns: int) -> Any:
        """Return the matrix that scikit-learn's encoder returns, under its settings."""
        from scipy import sparse  # type: ignore[import-untyped, unused-ignore]

        if not ((columns >= 0) & (columns < n_columns)).all():  # SciPy does not look
            raise InvalidModelError(
                f"The forest's scores are no columns of a matrix of {n_columns}, as "
                "they are in a RandomTreesEmbedding; the model is damaged, save it "
                "again."
            )
        shape, size = (len(columns), n_columns), columns.size
        indices, width = columns.astype(np.int32).reshape(-1), size // len(columns)
        known = sys.modules.get("sklearn")
        asked = {} if known is None else known.get_config()
        arrays = asked.get("sparse_interface", "spmatrix") != "spmatrix"
        make = sparse.csr_array if arrays else sparse.csr_matrix
        short = np.int32 if size < 1 << 31 else np.int64
        ends = np.arange(0, size + 1, width, dtype=short)
        matrix = make((np.ones(size), indices, ends), shape=shape)
        return matrix.toarray() if self.matrix == "dense" else matrix

    def leaves(self, numbers: Any) -> Any:
        numbers = numbers.astype(self.leaf_dtype, "F" if self.leaves_by_column else "K")
        if self.leaf_shape is not None:
            return numbers.reshape(-1, *self.leaf_shape)
        return numbers[:, 0] if self.flat_leaves else numbers


class Source:
    """A fitted model: its rows, its answers, and calls of its own methods."""

    #: Classes of live models, as ``module.Class``.
    classes: ClassVar[tuple[str, ...]] = ()
    #: The adapter's name in artifacts.
    kind: ClassVar[str] = ""
    #: What artifacts keep of its models.
    rules_type: ClassVar[type[StoredRules]] = StoredRules
    #: What its models come from, if they are not stored.
    origin_type: ClassVar[type[FromFile]] = Live

    #: Which rows the model takes.
    facts: RowFacts = RowFacts()
    #: Whether the forest's rounds are the model's.
    staged: bool = False
    #: Adapters with forests of their own for other forms of rows, by form as text.
    twins: Mapping[str, Source] = MappingProxyType({})

    #: How answers are made of raw scores.
    answers: Answers = Answers()
    #: Steps of a pipeline that run in their library before the forest.
    before: Sequence[Any] = ()
    #: The adapter that knows what leaves hold, if answers are made of that; whether raw
    #: scores, which contributions explain, are the model's predictions.
    leaf_source: Any = None
    explains: bool = True
    #: Compiled members, if the model's own code computes everything else.
    members: tuple[Any, ...] = ()

    def __init__(self, model: Any, forest: Forest) -> None:
        self.forest = forest
        stored = isinstance(model, StoredModel)
        self.origin = (Stored if stored else self.origin_type)(model)
        #: What the row checks depend on besides feature names and the forest.
        self.rules: Any = model.rules if stored else self.rules_of(model)
        (self.take_stored if stored else self.take_live)(model)
        if getattr(forest, "is_encoded", False):
            # whose columns are not those of users
            self.facts = replace(self.facts, direct=False, on_device=False)

    def take_live(self, model: Any) -> None:
        """Take from a model that is not stored what the adapter needs beside it."""

    def take_stored(self, stored: StoredModel) -> None:
        """Take the same from what is kept of a model."""

    @classmethod
    def rules_of(cls, model: Any) -> StoredRules:
        return StoredRules()

    @classmethod
    def detects(cls, model: Any) -> bool:
        """Tell whether this adapter is for a live model; imports no library."""
        return not class_names(model).isdisjoint(cls.classes)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        """Return objects and numbers that refitting, training or editing changes."""
        return []

    @property
    def held(self) -> Any:
        """The live model, or what is stored of one."""
        return self.origin.held

    @property
    def model(self) -> Any:
        """The live model, or None."""
        return self.origin.model

    @property
    def index_dtypes(self) -> tuple[str, ...]:
        """By column, the dtype that XGBoost's categories must have; () for any."""
        return ()

    @property
    def class_name(self) -> str:
        return self.origin.class_name

    @cached_property
    def warning(self) -> str:
        return "" if self._plain is None else self._plain.unnamed

    def codes(self) -> dict[int, dict[str, Any]]:
        """Return the codes of columns of texts, by column, for exported libraries.

        ``codes`` are those of known texts; ``missing``, ``none`` and ``other`` those
        of NaN, of None and of the rest: "NaN", or None for what the source refuses.
        """
        return {}

    def prepared(self, X: Any, method: str = "predict") -> Any:
        """Return rows after work to be done once a call; other methods take both."""
        return X

    def takes(self, X: Array) -> bool:
        """Tell whether the model accepts the values of C-contiguous, converted rows."""
        return len(X) > 0

    def takes_codes(self, rows: Array) -> bool:
        """Tell whether it surely takes rows of mappings that no entry takes."""
        return False

    def outside(self, rows: Array) -> tuple[int, int] | None:
        """Return the place of a number that a stored model certainly does not take."""
        return None

    def repaired(self, rows: Array) -> Array:
        """Return rows with accepted values in place of those a pipeline refuses."""
        return rows

    def form_of(self, X: Any) -> Any:
        """Return the form of rows that steps may compute with in another dtype.

        None if only the model reads them.
        """
        return None

    def knows(self, form: Any) -> bool:
        return True

    def form(self, X: Any) -> Any:
        form = self.form_of(X) if self.facts.has_forms else None
        return None if form is None or self.knows(form) else form

    def of_form(self, form: Any) -> Source | None:
        return None

    def sample(self, dtype: Any) -> Any:
        """Return a row of a dtype in the form of training; None if no form matters."""
        return None

    def reading(self) -> Reading | None:
        """Return how to read common kinds of rows; None leaves all to :meth:`rows`."""
        return None

    @cached_property
    def _plain(self) -> Any:
        reading = self.reading()
        if reading is None:
            return None
        if self.forest.hashed is not None:
            return reader_of(self.forest)
        return PlainRows(reading, self.forest.n_features, self._categories)

    @cached_property
    def _categories(self) -> FrameColumns:
        return FrameColumns(*about_categories(self.forest))

    def entry_of_objects(self, entry: Any, of_hashes: Any, least: int) -> Any:
        made = getattr(self._plain, "entry", None)  # only a reader of hashes has it
        return None if made is None else made(entry, of_hashes, least)

    def read(self, X: Any) -> ReadArray | None:
        """Read common rows, and a warning; :meth:`takes` is to check the values."""
        read: ReadArray | None = None if self._plain is None else self._plain.read(X)
        return None if read is None or self._passes_on(X, read[0]) else read

    def read_hashes(self, X: Any) -> Array | None:
        """Return common rows with hashes of categories in place of the forest's."""
        rows: Array | None = None if self._plain is None else self._plain.hashes(X)
        return None if rows is None or self._passes_on(X, rows) else rows

    def _passes_on(self, X: Any, rows: Array) -> bool:
        passed_on = self.passed_on(X)
        return passed_on is not None and passed_on(X, rows)

    def passed_on(self, X: Any) -> PassedOn | None:
        """Return what tells which rows of a form the model has to read; None: none."""
        return None

    def reader(self, X: Any, most: int) -> tuple[ReadForm, str] | None:
        """Return what reads further rows of the form of these, and the form's warning.

        ``most`` is the number of values from which on rows are left to others. None if
        these are not read.
        """
        if (read := self.read(X)) is None:
            return None
        own = type(self).read is not Source.read
        plain = None if own else self._plain.reader(X, most)
        if plain is None:
            plain = of_source(self.read, most // read[0].shape[1], read[1], X)
        elif (passed_on := self.passed_on(X)) is not None:
            plain = partial(without, passed_on, plain)
        return plain, read[1]

    def columns(self) -> MappingColumns | None:
        """Return the columns of rows that are mappings; None if the model takes these.

        Raise ``InvalidInputError`` if it has no feature names, or one twice.
        """
        reading, forest = self.reading(), self.forest
        names = None if reading is None else reading.names
        names = given_names(forest.column_names if names is None else names)
        if names is None:
            raise without_names()
        if forest.lacks_columns:
            raise InvalidInputError(f"the rows are mappings, and {unplaced(forest)}")
        if len({*names}) < len(names):
            raise InvalidInputError(
                "the rows are mappings, but the model has several columns with the "
                "same name; pass a DataFrame or an array."
            )
        unseen = None if reading is None else reading.unseen
        rules, dropped = [], forest.dropped_columns
        for index, (name, labels) in enumerate(
            zip(names, forest.category_names or [()] * len(names), strict=True)
        ):
            if index in dropped:
                continue
            how: dict[str, Any] = {}
            if labels:
                table = {label: float(code) for code, label in enumerate(labels)}
                how = {"table": table, "missing": np.nan, "unknown": unseen}
            rules.append(ColumnRule(str(name), index, categories=labels or None, **how))
        by_objects = forest.hashed is not None
        by_frame = reading is None or by_objects
        sizes = len(names), forest.input_dtype.str, bool(dropped)
        return MappingColumns(tuple(rules), *sizes, by_frame, by_objects)

    def _reading(self, **how: Any) -> Reading:
        names = getattr(self.held, "feature_names_in_", None)
        usual: dict[str, Any] = {
            "names": None if names is None else tuple(names),
            "estimator": self.class_name,
            "fill": self.facts.fill,
        }
        return Reading(self.forest.input_dtype, **usual | how)

    def rows(self, X: Any, method: str) -> Any:
        """Return an array or CSR matrix for the kernels, or None to use :meth:`call`.

        Without a live model, raise an error for rows that are declined.
        """
        rows = self.tried(X, method)
        if rows is None:
            self.origin.decline(self, X, method)
        return rows

    def tried(self, X: Any, method: str) -> Any:
        rows = None
        if method != "apply":  # for which some libraries take fewer rows
            rows = self.taken(self.read(X))
        return self.origin.tried(self, X, method) if rows is None else rows

    def _rows(self, X: Any, method: str) -> Any:
        return self.taken(self.read(X))

    def _of_batch(self, batch: Any) -> Any:
        """Return the rows of a batch in a class that is read in more ways."""
        from pyarrow import Table

        return Table.from_batches([batch])

    def _unaided(self, X: Any, method: str) -> Any:
        """Return rows that a live model would have to read, as its library does."""
        return None

    def taken(self, read: ReadArray | None) -> Array | None:
        """Return rows that were read, and warn; None if the model must see them."""
        if read is None or not self.takes(read[0]):
            return None
        if read[1]:
            warn(read[1])
        return read[0]

    def as_given(self, rows: Array) -> Any:
        """Return rows of the forest in a form that the model takes; None if unsure."""
        return rows if self.facts.direct and self.forest.is_plain else None

    def of_no_rows(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {}

    def drawn(self, n: int, missing: float) -> Array:
        """Return rows around the forest's thresholds that the model accepts."""
        return draw_rows(self.forest, n, 0, missing)

    def kept_rules(self) -> StoredRules:
        """Return the rules to keep; raise if they do not suffice to convert rows."""
        return self.rules

    def call(self, method: str, X: Any, **params: Any) -> Any:
        held = self.held
        asked = held.call if isinstance(held, StoredModel) else self._call
        return asked(method, X, **params)

    def same_method(self, method: str, params: Mapping[str, Any]) -> str | None:
        """Return the method that answers without arguments what these ask for."""
        return None

    def spec_of_stage(self, spec: AnswerSpec) -> AnswerSpec:
        """Return the rules of answers after some rounds, from those of a method."""
        return spec

    def stage(self, method: str, answer: Any) -> Any:
        """Return the model's answer after some rounds, from that of a method."""
        return answer

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        return getattr(self.model, method)(X, **params)

    def raw(self, rows: Array) -> Array:
        """Return raw scores from the model on one thread, or the reference walk."""
        if self.model is not None and not self.forest.is_encoded:
            return np.asarray(self._raw(rows))
        raw = self.reference(rows)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def reference(self, rows: Array) -> Array:
        forests = self.forest, *self.answers.more
        scores = [reference_raw(forest, rows) for forest in forests]
        return np.hstack([raw.reshape(len(rows), -1) for raw in scores])

    def _raw(self, rows: Array) -> Any:
        with no_warnings():  # feature names: the rows have none
            return self.call("predict_raw", rows)

    def raw_of(self, X: Any) -> Array:
        """Return raw scores of users' rows."""
        encoded = self.model is not None and self.forest.is_encoded
        rows = None if encoded else self.rows(X, "predict_raw")
        if rows is None:
            return np.asarray(self.call("predict_raw", X))
        return self.raw(rows)

    def outputs(self, X: Any, raw: Array | None = None) -> dict[str, Any]:
        """Return answers to compare with, by method; ``raw`` are scores, if known."""
        if self.model is None:
            if self.read(X) is None:
                return {}
            raw = self.raw_of(X) if raw is None else raw
        elif (answers := self._outputs(X)) or raw is None:
            return answers
        if self.answers.by_members:
            return {}
        outputs, spec = {"predict_raw": raw}, self.forest.answers
        if spec.outputs.function != "unknown":  # of embeddings, which predict nothing
            outputs["transformed"] = of_scores(spec, "transformed", raw)
        return outputs

    def _outputs(self, X: Any) -> dict[str, Any]:
        if not self.answers.labels:  # a Booster has one method
            return {"transformed": self.call("value", X)}
        serial, answers = self._serial(), {}
        failed: dict[str, Exception] = {}
        for name in METHODS:
            if hasattr(serial, name):
                try:
                    answers[name] = getattr(serial, name)(X)
                except Exception as error:  # noqa: BLE001 - of any library
                    failed[name] = error
        for name, first in failed.items():
            self._refuse_failed(name, first, [*answers])
        return answers

    def _refuse_failed(self, method: str, error: Exception, others: list[str]) -> None:
        """Raise the library's error about rows, or say which of its methods fails."""
        foreign = type(error).__module__ != "builtins"
        if not others and (foreign or isinstance(error, ValueError)):
            raise error
        call, kind = f"{self.class_name}.{method}", type(error).__name__
        said = f"{call} raises {kind}: {str(error).rstrip('.')}"
        if not others and isinstance(error, TypeError):
            raise InvalidInputError(
                f"{said}. Compiled answers are compared with the model's; pass rows "
                "that it answers."
            ) from error
        beside = f", although {others[0]} answers" if others else ""
        raise UnsupportedModelError(
            f"{said}{beside}: the model lacks what this method needs. Load it into the "
            "class that it was trained as, or give CompiledForest its file or Booster."
        ) from error

    def _serial(self) -> Any:
        return self.model


ADAPTERS: list[type[Source]] = []

#: The modules with our adapters, in the order in which these are tried, and the kinds
#: of stored models: each needs its own module alone.
_HOMES = {
    "wrappers.source": ("wrapper",),
    "xgboost": ("xgboost", "xgboost_booster"),
    "leaf_weights": ("quantile", "survival"),
    "onedal": ("onedal",),
    "sklearn": ("trees", "embedding", "boosting", "isolation", "bagging", "adaboost"),
    "histogram": ("histogram",),
    "pipeline": ("pipeline",),
    "lightgbm": ("lightgbm", "lightgbm_booster"),
    "files": ("forest",),
    "catboost": ("catboost",),
}


def adapter_of(model: Any) -> type[Source] | None:
    if isinstance(model, StoredModel):
        return _adapter_for(model.kind)
    # the others import their libraries, and take no forest
    for home in ("files",) if isinstance(model, Forest) else _HOMES:
        import_module(f"skforge.sources.{home}")
    return next((adapter for adapter in ADAPTERS if adapter.detects(model)), None)


def _adapter_for(kind: str) -> type[Source] | None:
    for home, kinds in _HOMES.items():
        if kind in kinds:
            import_module(f"skforge.sources.{home}")
    return next((adapter for adapter in ADAPTERS if adapter.kind == kind), None)


def rules_type(kind: str) -> type[StoredRules]:
    adapter = _adapter_for(kind)
    return StoredRules if adapter is None else adapter.rules_type


def member_source(model: Any, forest: Forest) -> Source:
    adapter = adapter_of(model)
    if adapter is None:
        raise UnsupportedModelError(
            f"CompiledForest does not know which rows {type(model).__name__} takes; "
            "use skforge.compile_forest(skforge.load_forest(model))."
        )
    return adapter(model, forest)


def member_traces(model: Any) -> list[Any]:
    """Return what changes with a model; stored ones are plain data, and stay."""
    adapter = None if isinstance(model, StoredModel) else adapter_of(model)
    return [] if adapter is None else adapter.traces(model)


AnySource = TypeVar("AnySource", bound=type[Source])


def register(adapter: AnySource) -> AnySource:
    """Register an adapter; ours are tried after those of others."""
    ours = [f"skforge.sources.{home}" for home in _HOMES]
    ADAPTERS.insert(0, adapter)
    ADAPTERS.sort(key=lambda a: a.__module__ in ours and 1 + ours.index(a.__module__))
    return adapter
