"""Adapters for scikit-learn's Pipeline: rows of its first step, answers of its last."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.reference import differing_rows
from skforge.frontends import read_forests
from skforge.frontends.base import class_name, is_pipeline, last_step
from skforge.frontends.pipeline import split
from skforge.frontends.pipeline.lookups import encodes_numbers, is_lookup
from skforge.frontends.pipeline.model import FoldedPipeline, fold_of, folded
from skforge.frontends.pipeline.transformers import (
    COLUMNS,
    UNION,
    by_column,
    children,
    first_reader,
    first_step,
    is_absent,
    members,
)
from skforge.outputs.steps import Refused
from skforge.rows import forms
from skforge.rows.pipeline_rows import PipelineRows
from skforge.rows.plain import Reading
from skforge.runtime.mapping_values import ColumnRule
from skforge.runtime.mappings import MappingColumns, without_names
from skforge.sources import base
from skforge.sources.row_facts import RowFacts
from skforge.sources.stored_model.model import StoredModel, StoredRules

_MAX = float(np.finfo(np.float64).max)
#: Drawn rows on which the forest for a form must equal the pipeline.
_FORM_ROWS = 128
#: Attributes that a transformer replaces in each call.
_WRITTEN = ("_transformers_feature_names_out",)


@dataclass(frozen=True)
class PipelineRules(StoredRules):
    rows: PipelineRows
    answers: base.Answers

    def suits(self, forest: Forest) -> bool:
        return self.rows.suits(forest)


@base.register
class PipelineSource(base.Source):
    """A fitted pipeline whose transformers are folded into the forest.

    The folded forest takes float64 rows, and another one float32 rows, which steps
    transform in float32. The pipeline itself answers for all other rows, and wherever
    values, warnings or errors are not certain here.
    """

    kind = "pipeline"
    rules_type = PipelineRules
    facts = RowFacts(has_forms=True, steps=True)

    def __init__(
        self,
        model: Any,
        forest: Forest,
        form: Any = None,
        parts: FoldedPipeline | None = None,
    ) -> None:
        self._form, self._parts = form, parts
        #: The form of objects alone, if the forest does not answer as the pipeline.
        self._refused: set[Any] = set()
        self.twins: dict[str, PipelineSource] = {}
        super().__init__(model, forest)
        self._set_limits(self._known)

    def take_live(self, model: Any) -> None:
        self._known = self._folded_rows(model, self._parts)

    def take_stored(self, stored: StoredModel) -> None:
        self._known, self.answers = self.rules.rows, self.rules.answers
        if (last := stored.whole) is not None:
            self._last = base.member_source(last, read_forests(last)[0])
            self.answers = replace(self._last.answers, more=stored.more)

    def _folded_rows(self, model: Any, parts: FoldedPipeline | None) -> PipelineRows:
        forest = self.forest
        parts = parts or fold_of(model, forest)
        self._flat = split.flat(model)
        *before, _ = self._flat.steps
        step = last_step(self._flat)
        self._last = base.member_source(step, parts.inner)
        # further forests are on the pipeline's own rows
        self.answers = replace(self._last.answers, more=parts.more)
        # the first step that looks at rows checks their names
        first = first_step(before)
        names = forest.feature_names
        kind = "" if first is None else class_name(first)
        by_name = kind == COLUMNS and names is not None
        # a FunctionTransformer may give a frame names, which the next step warns about
        inner = [transformer for step in before for _, transformer in members(*step)]
        renames = any(getattr(step, "feature_names_out", None) for step in inner)
        reading = self._last.reading()
        narrow = reading is None or reading.through is not None
        # or it gets objects, as steps make of columns of some dtypes alone
        floats = self._last.facts.takes_floats
        self.facts = replace(self.facts, takes_floats=floats)
        steps = nested_parts([step for _, step in before])
        looks_up = is_lookup(first) and names is not None  # arrays in another way
        known = PipelineRows(
            forest.n_features,
            parts.bounds,
            parts.texts,
            parts.numbers,
            names,
            _used_columns(first) if by_name else None,
            by_position=kind not in ("", COLUMNS, UNION)
            and not (renames or is_lookup(first)),
            estimator=type(first).__name__,
            warning=None if by_name or parts.texts or looks_up else "",
            largest=1 << (24 if narrow else 53),
            forms={forms.form_text(self._form): []} if floats else {},
            either=parts.either,
            by_column=any(map(by_column, inner)) or not floats,
            decimals=not _encodes_numbers(steps),
            booleans=not _looks_numbers_up(steps),
        )
        if names is not None and known.warning is not None and floats:
            known = replace(known, warning=self._warning_of(known))
        return known

    def _set_limits(self, known: PipelineRows) -> None:
        bounds = known.bounds
        ends = np.concatenate([-bounds.low, bounds.high]).astype(float)
        limit = float(ends.min(initial=_MAX))
        declines: Refused = "infinite" if bounds.nan.all() else "not_finite"
        plain = not (known.texts or known.numbers)
        self.facts = replace(
            self.facts,
            # entries take numbers of both signs
            declines=declines if limit > 0 else None,
            limit=limit,
            on_device=plain,
            direct=plain and known.warning is not None,
            selects=known.by_name is not None,
            texts={i: frozenset(codes.texts) for i, codes in known.texts.items()},
        )

    def _warning_of(self, known: PipelineRows) -> str | None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            zeros = known.bounds.repaired(np.zeros((1, known.width)))
            answer = getattr(self.model, "transform", None) or self.model.predict
            answer(known.decoded(zeros))
        texts = {str(warning.message) for warning in caught}
        said = [text for text in texts if "valid feature names" in text]
        return None if len(said) > 1 else "".join(said)

    @classmethod
    def detects(cls, model: Any) -> bool:
        return is_pipeline(model)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        last = last_step(model)
        return [*nested_parts(model.steps[:-1]), last, *base.member_traces(last)]

    def kept_rules(self) -> PipelineRules:
        # A wrapper is stored beside them, and made again from that.
        return PipelineRules(self._known, replace(self.answers, root=None))

    def outside(self, rows: Array) -> tuple[int, int] | None:
        bounds = self._known.bounds
        wrong = ~((rows >= bounds.low) & (rows <= bounds.high)) & ~np.isnan(rows)
        return next(((row, column) for row, column in np.argwhere(wrong)), None)

    @property
    def warning(self) -> str:
        return self._known.warning or ""

    def reading(self) -> Reading | None:
        return self._known.reading

    def columns(self) -> MappingColumns | None:
        columns = super().columns()
        return None if columns is None else self._known.columns(columns)

    def codes(self) -> dict[int, dict[str, Any]]:
        for column, numbers in self._known.numbers.items():
            if numbers.coded:
                raise UnsupportedModelError(
                    f"The forest reads column {column} as interval codes, which an "
                    "exported library cannot compute; use skforge.save instead."
                )
        return {column: texts.named() for column, texts in self._known.texts.items()}

    @property
    def _plain(self) -> Any:
        unsure = self.answers.by_members and self._last.facts.declines is None
        return None if unsure else self._known

    def form_of(self, X: Any) -> Any:
        form = self._known.form_of(X)
        left = not self._refused.isdisjoint(self._known.parts_of(form))
        return None if left else form

    def knows(self, form: Any) -> bool:
        return form is None or self._known.gaps_of(form) is not None

    def sample(self, dtype: Any) -> Any:
        return self._known.sample(dtype)

    def of_form(self, form: Any) -> PipelineSource | None:
        """Fold the steps for rows of a form; return itself if its forest has the tests.

        Steps compute in the dtypes of the rows: in float32, scalers round otherwise.
        """
        if self._form is not None:
            return None
        for part in self._known.parts_of(form):
            if part in (None, form):
                continue
            if forms.form_text(part) not in self._known.forms:
                other = self._of_form(part)
                if other is None and forms.has_objects(part):
                    self._refused.add(part)
                    return None
        return self if self._known.gaps_of(form) is not None else self._of_form(form)

    def _of_form(self, form: Any) -> PipelineSource | None:
        twin: PipelineSource | None = self.twins.get(forms.form_text(form))
        return twin or self.origin.twin(self, form)

    def twin_of_live(self, form: Any) -> PipelineSource | None:
        dtypes = forms.computed(form, self._known.width)
        float64 = np.dtype(np.float64)
        wide = [float64 if dtype.kind == "f" else dtype for dtype in dtypes]
        other = self._folded_for(form, dtypes)
        if isinstance(form, forms.Form) and form.kind != "pandas" and dtypes != wide:
            # some steps take these frames as float64, and others as they are
            also = self._folded_for(form, wide)
            if other is not None and also is not None:
                if not other._reads_as(also, dtypes):
                    return None  # both agree where they were tried
            elif other is None and not self._known.bounds.whole:
                other, dtypes = also, wide
        if other is None:
            return None
        text = forms.form_text(form)
        if self._reads_as(other, dtypes):
            self._known.forms[text] = other._known.forms[text]
            return self
        self.twins[text] = other
        return other

    def _reads_as(self, other: PipelineSource, dtypes: list[Any]) -> bool:
        mine = self.forest, *self.answers.more
        others = other.forest, *other.answers.more
        return (
            mine[0].input_dtype == others[0].input_dtype
            and self._known.shares(other._known)
            and forms.contains(self._known.bounds, other._known.bounds, dtypes)
            and all(map(partial(forms.same_tests, dtypes=dtypes), mine, others))
        )

    def _folded_for(self, form: Any, dtypes: list[Any]) -> PipelineSource | None:
        if self._is_odd(form) or self._known.refuses(form):
            return None
        try:
            if {*dtypes} == {np.dtype(np.float64)}:  # steps make it of objects, too
                other = copy.copy(self)  # whose forest is of float64
                other._form, other._known = form, replace(self._known, forms={})
            else:
                whole = form == np.float32 and self.forest.input_dtype == np.float64
                how = {"dtype": np.float32} if whole else {"form": dtypes}
                parts = folded(self.model, **how)
                bounds = replace(parts.bounds, whole=self._known.bounds.whole)
                parts = parts._replace(bounds=bounds)
                other = PipelineSource(self.model, parts.forest, form, parts)
            if not other._agrees((), self):
                return None
        except (UnsupportedModelError, ValueError, TypeError, NotImplementedError):
            return None
        gaps = forms.nullable(form)
        if gaps and not other._agrees(gaps, self):
            gaps = [column for column in gaps if other._agrees([column], self)]
        other._known.forms[forms.form_text(form)] = gaps
        return other

    def _is_odd(self, form: Any) -> bool:
        """Tell whether a function gets frames of a form otherwise than as dtypes say.

        Of nullable columns, its answers are as narrow as their numbers; of tables, they
        have no names. Of objects, it may make other ones, or raise an error.
        """
        if not isinstance(form, forms.Form) or not self._known.by_column:
            return False
        pairs = zip(form.types, form.numbers, strict=True)
        nullable = [n for dtype, n in pairs if n and not isinstance(dtype, np.dtype)]
        narrow = any(n.itemsize < (8 if n.kind == "f" else 4) for n in nullable)
        nameless = form.kind in ("polars", "pyarrow") and self._known.by_name is None
        return narrow or nameless or forms.has_objects(form)

    def _agrees(self, gaps: Sequence[int], like: PipelineSource) -> bool:
        self._known.forms[forms.form_text(self._form)] = [*gaps]
        drawing = (self,) if like.forest is self.forest else (self, like)
        return all(self._agrees_on(source, gaps) for source in drawing)

    def _agrees_on(self, drawing: PipelineSource, gaps: Sequence[int]) -> bool:
        rows = drawing.drawn(_FORM_ROWS, 0.05)
        for column, texts in drawing._known.texts.items():
            for row, code in enumerate((texts.none, texts.nan, texts.unknown)):
                rows[row::9, column] = rows[row::9, column] if code is None else code
        decoded = drawing._known.decoded(rows, self._form, gaps)
        fitted = drawing._known.fitted(rows, self._form, gaps)
        some = np.flatnonzero(self._known.may_read(fitted, self._form))
        if len(some) < len(rows):  # reading finds it out row by row, .2 ms for each
            decoded = forms.rows_at(decoded, some)
        fine = readable(self._known.read, decoded, range(len(some)))
        if len(fine) < len(some):
            decoded = forms.rows_at(decoded, fine)
        read = self._known.read(decoded) if fine else None
        if read is None:
            return False
        rows, said = read
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                made = self._transformed(decoded)
                # few of the rows may tell None from NaN by what trees make of them
                if forms.has_objects(self._form) and not forms.alike(
                    made, self._transformed(forms.with_floats(decoded, self._form))
                ):
                    return False
                expected = self._last.raw_of(made)
            except Exception:  # noqa: BLE001 - CatBoost and others raise their own
                return False
        # deprecations are what a step's library says to its own authors
        told = {
            str(warning.message)
            for warning in caught
            if not issubclass(warning.category, DeprecationWarning)
        }
        if told - {said, self._known.warning}:
            return False
        raw = self.reference(rows)
        return not len(differing_rows(raw, expected.reshape(raw.shape)))

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method == "predict_raw":
            return self._last.raw_of(self._transformed(X))
        if method == "apply":
            return self._last.call(method, self._transformed(X), **params)
        return super()._call(method, X, **params)

    def as_given(self, rows: Array) -> Any:
        floats = self.facts.takes_floats or self._form is not None
        return self._known.decoded(rows, self._form) if floats else None

    def _transformed(self, X: Any) -> Any:
        return _transformed(self._flat.steps[:-1], X)

    def _raw(self, rows: Array) -> Any:
        decoded = self._known.decoded(rows, self._form)
        with no_warnings():  # feature names: the rows have none
            return self._last.raw_of(self._transformed(decoded))

    def _serial(self) -> Any:
        serial = copy.copy(self._flat)
        name, _ = serial.steps[-1]
        serial.steps = [*serial.steps[:-1], (name, self._last._serial())]
        return serial

    def drawn(self, n: int, missing: float) -> Array:
        rows = super().drawn(n, 0.05)
        near = rows.copy()
        random = np.random.default_rng(1)
        toward = np.array([-np.inf, 0.0, np.inf])
        dtypes = [self.forest.input_dtype] * rows.shape[1]
        if self._form is not None:
            dtypes = forms.computed(self._form, rows.shape[1])
        for feature in range(rows.shape[1]):
            cuts = self.forest.threshold[self.forest.feature == feature]
            cuts = cuts[np.isfinite(cuts)]
            if len(cuts):
                cut = cuts[random.integers(0, len(cuts), len(near))]
                way = toward[random.integers(0, 3, len(near))]
                dtype = dtypes[feature] if dtypes[feature].kind == "f" else cut.dtype
                with np.errstate(all="ignore"):
                    beside = np.nextafter(cut.astype(dtype), way.astype(dtype))
                near[:, feature] = np.where(way == 0, cut, beside)
        return self.repaired(np.concatenate([rows, near]))

    def repaired(self, rows: Array) -> Array:
        return self._known.repaired(rows)


def readable(read: Callable[[Any], Any], X: Any, places: range) -> list[int]:
    """Return the places of rows that are read; of a part that is not, the halves'."""
    if read(X[places.start : places.stop]) is not None:
        return [*places]
    half = len(places) // 2
    parts = (places[:half], places[half:]) if half else ()
    return [place for part in parts for place in readable(read, X, part)]


def _transformed(steps: Sequence[tuple[str, Any]], X: Any) -> Any:
    for _, step in steps:
        X = X if is_absent(step) else step.transform(X)
    return X


def _used_columns(transformer: Any) -> list[int]:
    columns = {
        int(i)
        for _, step, places in children(transformer)
        if not (isinstance(step, str) and step == "drop")
        for i in places or ()
    }
    return sorted(columns)


def frame_columns(part: Any, steps: Sequence[Any]) -> MappingColumns | None:
    """Return the columns of frames that a step or model reads itself.

    None if it counts no columns: its rows may be mappings, as DictVectorizer's are. A
    missing text is None if an encoder among ``steps`` knows None, and NaN otherwise.
    """
    names = getattr(part, "feature_names_in_", None)
    if names is None:
        if getattr(part, "n_features_in_", None) is not None:
            raise without_names()
        return None
    gaps: dict[str, Any] = {}
    for step in nested_parts(steps):
        known = getattr(step, "categories_", None)
        objects = getattr(step, "_fit_dtype", None) == np.object_  # of an imputer
        for i, name in enumerate(getattr(step, "feature_names_in_", ())):
            if objects or (known is not None and known[i].dtype == np.object_):
                none = known is not None and None in known[i].tolist()
                gaps[str(name)] = None if none else gaps.get(str(name), np.nan)
    rules = []
    for column, name in enumerate(map(str, names)):
        missing, gap = None if name in gaps else np.nan, gaps.get(name, np.nan)
        rules.append(ColumnRule(name, column, {}, missing, gap=gap))
    return MappingColumns(tuple(rules), len(rules), by_frame=True)


def nested_parts(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [part for step in value for part in nested_parts(step)]
    if not hasattr(value, "get_params"):
        return [value]
    inside = [v for k, v in vars(value).items() if k not in _WRITTEN]
    nested = [step for step in inside if isinstance(step, (list, tuple))]
    return [value, *inside, *nested_parts(nested)]


def _encodes_numbers(parts: list[Any]) -> bool:
    within = {id(getattr(part, "_encoder", None)) for part in parts}
    return _looks_numbers_up(parts) or any(
        labels.dtype != np.object_
        for part in parts
        for labels in getattr(part, "categories_", ())
        if id(part) not in within
    )


def _looks_numbers_up(parts: list[Any]) -> bool:
    return any(encodes_numbers(part) for part in parts if is_lookup(part))


class Prepared(NamedTuple):
    rows: Any


class PrefixedSource(base.Source):
    """A fitted pipeline: its first steps, and the adapter of the rest.

    The forest is that of the rest. A batch is transformed as a whole, because rows of
    a part of it may differ in the last bit: BLAS has code for each size.
    """

    facts = RowFacts(declines=None, direct=False, on_device=False)

    def __init__(
        self, model: Any, forest: Forest, start: int, last: base.Source
    ) -> None:
        super().__init__(model, forest)
        self._before = split.flat_steps(model)[:-1]
        steps = split.unbranched(split.divided_steps(model)[:start])
        self.before = [step for step in steps if not is_absent(step)]
        self._last, self.answers = last, last.answers
        self.facts = replace(self.facts, fill=last.facts.fill)
        self.leaf_source, self.explains = last.leaf_source, last.explains

    def kept_rules(self) -> NoReturn:
        raise UnsupportedModelError(
            "Some steps of the pipeline run in their own library, and a .skforge file "
            "cannot store transformers; use joblib.dump, or save only the forest with "
            "skforge.save(fast.forest_, path) and give it rows that these steps have "
            "transformed."
        )

    def prepared(self, X: Any, method: str = "predict") -> Any:
        """Return rows after the first steps; others are for the pipeline itself."""
        if type(X) is Prepared:
            return X
        rows = X
        try:
            for step in self.before:
                if (rows := step.transform(rows)) is None:
                    return X
        except Exception:
            # a wrapper around the pipeline may refuse X first
            getattr(self.model, method, self.model.predict)(X)
            raise
        return Prepared(rows)

    def columns(self) -> MappingColumns | None:
        reader = first_reader(self._before)
        if reader is None:
            columns = self._last.columns()
            return columns and replace(columns, by_frame=True)
        columns = frame_columns(reader, [step for _, step in self._before])
        first = first_step(self._before)
        if columns is None or first is None or class_name(first) != COLUMNS:
            return columns
        rules = columns.rules
        if first is reader:  # no function reads the columns that it drops
            rules = tuple(rules[column] for column in _used_columns(first))
        return replace(columns, rules=rules, ignores=True)

    def form(self, X: Any) -> Any:
        return self._last.form(X.rows) if type(X) is Prepared else None

    def of_form(self, form: Any) -> base.Source | None:
        last = self._last.of_form(form)
        if last is None or last is self._last:
            return last and self
        other = copy.copy(self)
        other._last, other.forest, other.answers = last, last.forest, last.answers
        return other

    def _rows(self, X: Any, method: str) -> Any:
        X = self.prepared(X)
        return self._last.rows(X.rows, method) if type(X) is Prepared else None

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        scores = method in ("predict_raw", "apply")
        X = self.prepared(X) if scores else X
        if type(X) is Prepared:
            return self._last.call(method, X.rows, **params)
        if not scores:
            return super()._call(method, X, **params)
        X = _transformed(self._before, X)
        last = split.flat_steps(self.model)[-1][1]
        return base.member_source(last, read_forests(last)[0]).call(method, X, **params)

    def drawn(self, n: int, missing: float) -> Array:
        from sklearn.utils import get_tags

        known = self._last.model
        nan = hasattr(known, "fit") and get_tags(known).input_tags.allow_nan
        return self._last.drawn(n, 0.05 if nan else 0.0)

    def as_given(self, rows: Array) -> Prepared | None:
        decoded = self._last.as_given(rows)
        return None if decoded is None else Prepared(decoded)

    def raw(self, rows: Array) -> Array:
        return self._last.raw(rows)

    def outputs(self, X: Any, raw: Array | None = None) -> dict[str, Any]:
        original, X = X, self.prepared(X)
        one = type(X) is Prepared
        return self._last.outputs(X.rows, raw) if one else super().outputs(original)
