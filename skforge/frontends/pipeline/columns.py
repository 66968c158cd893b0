"""The columns of a fitted pipeline: which column of the rows each one is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.exceptions import InvalidModelError
from skforge.forest.forest import Forest
from skforge.frontends.base import class_name
from skforge.frontends.pipeline import transformers
from skforge.frontends.pipeline.lookups import Lookup, is_lookup
from skforge.frontends.pipeline.transformers import cannot_fold

_CELLS = 1 << 22  # of the matrices that transformers make at a time
_EXACT = 2.0**53  # float64 holds whole numbers up to here


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStage:
    step: str  # its name, with those of the steps around it
    #: The transformer; one that raises no error for unknown categories or markers.
    transformer: Any
    inputs: tuple[Column, ...]  # the columns that it gets
    sparse: str  # the format of the matrix that it gets, "" if that is dense
    special: list[Any]  # by input: values around which the outputs change in any order
    #: Whether it refuses texts and numbers that are not among the special values.
    strict: bool
    #: By input: its marker of missing values if it refuses that there, else None.
    markers: list[Any]
    nan: list[bool]  # by input: whether it accepts missing numbers
    #: By input: the least number that it takes.
    least: list[Any]

    def checks(self) -> Iterator[tuple[Column, Any, Any, bool]]:
        """Yield inputs with special values, refused markers, and if NaN is accepted."""
        return zip(self.inputs, self.special, self.markers, self.nan, strict=True)

    def transform(self, columns: Sequence[Array]) -> Any:
        try:
            if transformers.by_column(self.transformer):
                return np.column_stack(self.by_column(columns))
            return _called(self.transformer, _matrix(self, columns))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            cannot_fold(f"{class_name(self.transformer)} fails on a value: {error!r}")

    def by_column(self, columns: Sequence[Array]) -> list[Array]:
        return [_dense(_called(self.transformer, x[:, None])) for x in columns]

    def accepts(self, columns: Sequence[Array], transformer: Any) -> bool:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            _called(transformer, _matrix(self, columns), finite=False)
            return True
        return False

    def is_steady(self, columns: Sequence[Array]) -> bool:
        if transformers.by_column(self.transformer) and len(columns) > 1:
            return all(self.is_steady([column]) for column in columns)
        rows, every = _matrix(self, columns), _dense(self.transform(columns))
        parts = [slice(i, i + 1) for i in range(0, len(rows), 1 + len(rows) // 16)]
        parts += [slice(3), slice(1, 8), slice(2, 19)]
        layouts = [(part, rows[part]) for part in parts]
        layouts.append((slice(None), np.asfortranarray(rows)))
        return all(
            _dense(_called(self.transformer, given)).tobytes() == every[part].tobytes()
            for part, given in layouts
        )


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column: one of the rows, or an output of a transformer."""

    #: The column of the rows that it depends on.
    source: int
    dtype: Any
    #: A value that it may have.
    example: Any = 0.0
    stage: ColumnStage | None = None
    #: The stage's input that it reads, and its place among the stage's outputs.
    read: int = 0
    output: int = 0
    #: The columns of the rows that hold whole numbers if it does; None: never. An
    #: encoder's float64 column without any holds them in rows of known categories.
    whole: frozenset[int] | None = None
    rough: bool = False  # whether rounding may change the order of outputs


def sources_of(columns: Iterable[Column]) -> NDArray[np.intp]:
    """Return the column of the rows that each column depends on."""
    return np.array([column.source for column in columns], np.intp)


class Matrix(NamedTuple):
    columns: tuple[Column, ...]
    sparse: str  # its format, "" if it is dense


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    width: int  # columns of the rows
    dtype: Any  # the dtype of numbers in the rows
    columns: tuple[Column, ...] = ()  # those that the last step gets
    sparse: str = ""  # the format of the matrix that it gets, "" if that is dense
    #: All transformers, also those whose outputs are dropped later.
    stages: list[ColumnStage] = field(default_factory=list)
    #: The known texts of each column of the rows that holds texts.
    texts: dict[int, list[str]] = field(default_factory=dict)
    #: What scalers compute, also if it is clipped or dropped later: a number that is
    #: too large draws a warning there.
    scaled: list[Column] = field(default_factory=list)
    #: Columns of the rows, and dtypes of whole numbers: if these are the columns'
    #: common dtype, a step raises an error, or does not answer as for float64. Those of
    #: the last list also change the order of numbers, which do not fit.
    whole: list[tuple[list[int], list[str], list[str]]] = field(default_factory=list)

    def values(
        self, columns: Sequence[Column], rows: Mapping[int, Array]
    ) -> list[Array]:
        n_rows = len(next(iter(rows.values()))) if rows else 1
        step = max(1, _CELLS // max(1, sum(_needed(columns).values())))
        parts = [
            self._values(columns, {s: x[at : at + step] for s, x in rows.items()})
            for at in range(0, max(n_rows, 1), step)
        ]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _values(
        self, columns: Sequence[Column], rows: Mapping[int, Array]
    ) -> list[Array]:
        n_rows = len(next(iter(rows.values()))) if rows else 1
        answers: dict[int, Array] = {}

        def of(column: Column) -> Array:
            stage = column.stage
            if stage is None:
                values = rows.get(column.source)
                if values is None:
                    values = np.full(n_rows, self.example(column.source), column.dtype)
                return _cast(values, column.dtype)
            if id(stage) not in answers:
                answer = stage.transform([of(part) for part in stage.inputs])
                answers[id(stage)] = _dense(answer)
            return answers[id(stage)][:, column.output].astype(column.dtype, copy=False)

        return [of(column) for column in columns]

    def example(self, source: int) -> Any:
        known = self.texts.get(source)
        return 0.0 if known is None else (known or [""])[0]

    def values_of(self, columns: Sequence[Column], which: Array, x: Array) -> Array:
        used = np.unique(which)
        source = sources_of(columns)[which]
        order = np.argsort(source, kind="stable")
        counts = np.bincount(source)
        row = np.empty(len(x), np.intp)
        row[order] = np.arange(len(x)) - np.repeat(counts.cumsum() - counts, counts)
        rows: dict[int, Array] = {}
        for number in np.unique(source).tolist():
            at = source == number
            rows[number] = np.zeros(counts.max(), self.dtype)
            rows[number][row[at]] = x[at]
        values = self.values([columns[i] for i in used], rows)
        kinds = [value.dtype for value in values if value.dtype != np.object_]
        answer = np.empty(len(x), np.result_type(self.dtype, *kinds))
        for number, column in zip(used, values, strict=True):
            at = which == number
            answer[at] = column[row[at]]
        return answer


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a dtype, so that a greater number never becomes a smaller."""
    if dtype.kind in "iu" and values.dtype.kind == "f":
        ends = np.iinfo(dtype)
        most = float(ends.max)  # of 64 bits it is one too large
        most = most if int(most) == ends.max else float(np.nextafter(most, 0))
        values = np.clip(np.nan_to_num(values), float(ends.min), most)
    if dtype.kind == "b" and values.dtype.kind == "f":
        return values > 0
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def _needed(columns: Sequence[Column]) -> dict[int, int]:
    widths: dict[int, int] = {}
    for column in columns:
        stage = column.stage
        if stage is not None and id(stage) not in widths:
            widths[id(stage)] = len(stage.inputs)
            widths |= _needed(stage.inputs)
        if stage is not None:
            widths[id(stage)] = max(widths[id(stage)], column.output + 1)
    return widths


def plan_of(
    pipeline: Any,
    last: Forest,
    dtype: Any = np.float64,
    form: Sequence[Any] | None = None,
) -> ColumnPlan:
    """Return columns that the last step gets; ``form``: dtypes of the rows' columns."""
    width = transformers.of_first(pipeline.steps, "n_features_in_")
    if transformers.begins_with_last(pipeline.steps):
        width = last.n_features  # a CatBoost model that was copied says 0
    if width is None:
        raise InvalidModelError(
            "The pipeline does not store how many columns its rows have "
            "(n_features_in_); fit it, or begin it with a transformer that stores "
            "this."
        )
    plan = ColumnPlan(int(width), np.dtype(dtype))
    dtypes = [plan.dtype] * plan.width if form is None else form
    columns = tuple(
        Column(i, kind, whole=_whole_of(i, kind, form))
        for i, kind in enumerate(map(np.dtype, dtypes))
    )
    matrix = Matrix(columns, "")
    for name, transformer in pipeline.steps[:-1]:
        matrix = _after(name, transformer, matrix, plan)
    columns, sparse = matrix
    places = [("the last step", columns, True)]
    places += [(f"the step {s.step!r}", s.inputs, False) for s in plan.stages]
    for where, read, is_last in places:
        for column in read:
            known = column.stage is None and column.source in plan.texts
            if is_last if column.dtype == np.object_ else known:
                cannot_fold(f"A column of strings reaches {where} of the pipeline")
    return replace(plan, columns=columns, sparse=sparse)


def _whole_of(source: int, dtype: Any, form: Any) -> frozenset[int] | None:
    if form is None:
        return frozenset({source})
    return frozenset() if dtype.kind in "biu" else None


def with_codes(
    plan: ColumnPlan, categories: Mapping[int, Sequence[float]]
) -> ColumnPlan:
    """Return the plan with codes in columns that the last step encodes by itself.

    ``categories`` are the numbers that it knows of each column, in ascending order.
    """
    from sklearn.preprocessing import OrdinalEncoder

    columns = [*plan.columns]
    for i, known in categories.items():
        values = np.array(known, np.float64)
        if (values[1:] == values[:-1]).any():
            cannot_fold("The last step knows whole numbers that float64 rounds")
        unknown = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
        encoder = OrdinalEncoder(
            categories=[values], encoded_missing_value=np.nan, **unknown
        )
        encoder.fit(values[:1, None])
        matrix = Matrix((columns[i],), plan.sparse)
        (columns[i],) = _of_one("the last step", encoder, matrix, plan).columns
    return replace(plan, columns=tuple(columns))


def _after(step: str, transformer: Any, matrix: Matrix, plan: ColumnPlan) -> Matrix:
    function = transformers.function_of(transformer)
    if transformers.passes_on(transformer) and function is None:
        return matrix
    kind = class_name(transformer)
    if kind == transformers.PIPELINE:
        for name, child, _ in transformers.children(transformer):
            matrix = _after(f"{step}__{name}", child, matrix, plan)
        return matrix
    if kind == transformers.UNION:
        parts = [
            _after(f"{step}__{name}", child, matrix, plan)
            for name, child, _ in transformers.children(transformer)
            if child != "drop"
        ]
        joined = _joined([part.columns for part in parts])
        return Matrix(joined, "csr" if any(part.sparse for part in parts) else "")
    if kind == transformers.COLUMNS:
        return _by_columns(step, transformer, matrix, plan)
    transformers.refuse(step, transformer)
    if is_lookup(transformer):
        return _looked_up(step, transformer, matrix, plan)
    return _of_one(step, transformer, matrix, plan)


def _looked_up(step: str, encoder: Any, matrix: Matrix, plan: ColumnPlan) -> Matrix:
    if matrix.sparse:
        transformers.fail(step, encoder, "gets sparse rows")
    if not hasattr(encoder, "feature_names_out_"):
        why = "was fitted by a version of category_encoders before 2.6"
        transformers.fail(step, encoder, why)
    lookup = Lookup(encoder)
    read = Matrix(tuple(matrix.columns[i] for i in lookup.places), "")
    made = iter(_of_one(step, lookup, read, plan).columns)
    passed = lookup.passed
    outputs = tuple(next(made) if i is None else matrix.columns[i] for i in passed)
    return Matrix(outputs if encoder.return_df else _joined([outputs]), "")


def _of_one(step: str, transformer: Any, matrix: Matrix, plan: ColumnPlan) -> Matrix:
    fail = partial(transformers.fail, step, transformer)
    kind, rough = transformers.kind_of(transformer), transformers.is_rough(transformer)
    stage, examples = _stage(step, transformer, matrix, plan)
    plan.stages.append(stage)
    inputs = stage.inputs
    answer = stage.transform(examples)
    dense = _dense(answer)
    dtypes = {column.dtype for column in inputs} | {plan.dtype, *map(np.dtype, "d?O")}
    if (own := transformers.own_dtype(transformer)) is not None:
        dtypes.add(own)
    kinds = [dense.dtype] * len(inputs)
    if transformers.by_column(transformer):
        kinds = [part.dtype for part in stage.by_column(examples)]
    if not dtypes.issuperset(kinds):
        fail(f"returns columns of dtype {dense.dtype}")
    read = kind.reads(transformer, len(inputs))
    if dense.shape[1] != len(read):
        fail(f"returns {dense.shape[1]} columns, not {len(read)}")
    whole = _whole_outputs(stage, plan, examples, dense.dtype)
    outputs = tuple(
        Column(
            *(inputs[i].source, kinds[i], dense[0, place], stage, i, place, whole[i]),
            rough=rough or inputs[i].rough,
        )
        for place, i in enumerate(read)
    )
    if transformers.is_scaler(transformer):
        bare = replace(stage, transformer=transformers.unclipped(transformer))
        plan.scaled.extend(replace(column, stage=bare) for column in outputs)
    if kind.encodes and any(column.dtype == np.object_ for column in outputs):
        fail("returns columns of dtype object")
    if not hasattr(answer, "tocsr"):
        return Matrix(outputs, "")
    form = "csc" if type(answer).__name__ == "csc_matrix" else "csr"
    # the stage got CSR, and some steps keep the format
    is_known = form == "csc" or matrix.sparse in ("", "csr")
    return Matrix(outputs, form if is_known else "CSR or CSC")


def _stage(
    step: str, transformer: Any, matrix: Matrix, plan: ColumnPlan
) -> tuple[ColumnStage, list[Array]]:
    """Return a transformer with the columns that it gets, and a row of examples."""
    fail = partial(transformers.fail, step, transformer)
    n_inputs = len(matrix.columns)
    # these treat the absent zeros of sparse rows otherwise
    function = transformers.function_of(transformer)
    if matrix.sparse and (transformers.is_rough(transformer) or function is not None):
        fail("gets sparse rows")
    try:
        texts = transformers.texts_of(transformer, n_inputs)
    except TypeError as error:
        fail(str(error))
    special = transformers.special_values(transformer, n_inputs)
    markers = transformers.refused_markers(transformer, n_inputs)
    encodes = transformers.kind_of(transformer).encodes
    inputs, examples, missing = [], [], []
    for column, values, known in zip(matrix.columns, special, texts, strict=True):
        if known is not None:
            inputs.append(_as_text(column, known, plan))
            examples.append(np.array([(known or [""])[0]], object))
            missing.append(examples[-1])
            continue
        if encodes and values.dtype == object and column.dtype != np.object_:
            fail("was fitted on numbers of dtype object")
        inputs.append(column)
        examples.append(np.array([column.example], column.dtype))
        missing.append(_cast(np.full(1, np.nan), column.dtype))
    strict = transformers.is_strict(transformer)
    lenient = transformers.lenient(transformer)
    least = [transformers.least(transformer, column.dtype) for column in inputs]
    stage = ColumnStage(
        *(step, lenient, tuple(inputs), matrix.sparse, special, strict, markers, []),
        least=least,
    )
    nan = stage.accepts(missing, transformer if strict else lenient)
    stage = replace(stage, nan=[nan and value == value for value in markers])
    return stage, examples


def _as_text(column: Column, categories: list[str], plan: ColumnPlan) -> Column:
    if column.stage is not None and column.dtype != np.object_:
        step = column.stage.step
        cannot_fold(f"The step {step!r} returns numbers where the next reads strings")
    texts = plan.texts.setdefault(column.source, [])
    texts += [text for text in categories if text not in texts]
    if column.stage is not None:
        return column
    return replace(column, dtype=np.dtype(object), whole=None)


def _by_columns(
    step: str, transformer: Any, matrix: Matrix, plan: ColumnPlan
) -> Matrix:
    by_place: dict[int, Column] = {}
    for name, child, chosen in transformers.children(transformer):
        if isinstance(child, str) and child == "drop":
            continue
        outputs = tuple(matrix.columns[i] for i in chosen or ())
        if outputs:
            part = Matrix(outputs, matrix.sparse)
            outputs = _after(f"{step}__{name}", child, part, plan).columns
        places = transformer.output_indices_[name]
        if places.stop - places.start != len(outputs):
            why = f"assigns {places} to the outputs of {name!r}"
            transformers.fail(step, transformer, why)
        by_place.update(zip(range(places.start, places.stop), outputs, strict=True))
    joined = _joined([tuple(by_place[i] for i in range(len(by_place)))])
    return Matrix(joined, "csr" if transformer.sparse_output_ else "")


def _joined(parts: Sequence[tuple[Column, ...]]) -> tuple[Column, ...]:
    columns = tuple(column for part in parts for column in part)
    kinds = {column.dtype for column in columns}
    if len(kinds) < 2:
        return columns
    if np.dtype(object) in kinds:
        cannot_fold("A column of strings reaches a step beside numbers")
    common = np.result_type(*kinds)
    return tuple(
        column if column.dtype == common else replace(column, dtype=common)
        for column in columns
    )


def _whole_outputs(
    stage: ColumnStage, plan: ColumnPlan, examples: list[Array], dtype: Any
) -> list[frozenset[int] | None]:
    whole = _whole_numbers(stage, plan)
    if isinstance(stage.transformer, Lookup):
        return stage.transformer.whole(examples)
    if dtype.kind in "biu" and dtype in (
        np.bool_,
        transformers.own_dtype(stage.transformer),
    ):
        # beside whole numbers, these stay whole
        return [frozenset()] * len(stage.inputs)
    return whole


def _whole_numbers(stage: ColumnStage, plan: ColumnPlan) -> list[frozenset[int] | None]:
    inputs = [column.whole for column in stage.inputs]
    groups = _whole_groups(stage)
    refused, broken, stays = [], [], False
    of_lookups = _may_be_whole(stage, groups)
    wide = any(groups) and plan.dtype == np.float64
    for dtype in map(np.dtype, "bhilBHIL" if wide else "l" * of_lookups):
        rows = [
            _whole_values(stage, special, least, dtype)
            for special, least in zip(stage.special, stage.least, strict=True)
        ]
        rows = [np.resize(x, max(map(len, rows))) for x in rows]
        as_floats = [x if x.dtype == np.object_ else x.astype("f8") for x in rows]
        try:
            as_matrix = _called(stage.transformer, _matrix(stage, rows), errors="raise")
            found, expected = _dense(as_matrix), _dense(stage.transform(as_floats))
            same = np.array_equal(found, expected, equal_nan=True)
            if not (same or np.allclose(found, expected, 0.01, equal_nan=True)):
                broken.append(dtype.str)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            same = False
            broken.append(dtype.str)
        if same:
            stays = found.dtype.kind not in "bf"
        else:
            refused.append(dtype.str)
    if refused and of_lookups:
        why = "takes no whole numbers, but an encoder before it makes them"
        transformers.fail(stage.step, stage.transformer, why)
    plan.whole.extend((sorted(x), refused, broken) for x in groups if x and refused)
    return inputs if stays else [None] * len(inputs)


def _whole_groups(stage: ColumnStage) -> list[frozenset[int]]:
    """Return columns of the rows that are whole if a stage gets whole numbers."""
    inputs = [column.whole for column in stage.inputs]
    groups = [x for x in inputs if x is not None]
    if transformers.kind_of(stage.transformer).encodes:
        return groups
    # others get one matrix, of one dtype
    alone = groups if transformers.by_column(stage.transformer) else []
    return [*alone, *[frozenset().union(*groups)] * (None not in inputs)]


def _may_be_whole(stage: ColumnStage, groups: list[frozenset[int]]) -> bool:
    """Tell whether encoders make whole numbers of what else is float64."""
    floats = any(column.dtype == np.float64 for column in stage.inputs)
    return floats and frozenset() in groups


def _whole_values(stage: ColumnStage, special: Any, least: Any, dtype: Any) -> Array:
    """Return whole numbers for which a transformer may have rules of its own."""
    if special.dtype.kind in "OU":  # a column of texts
        return np.array([*special[:1], ""], object)[:1]
    low, high = np.clip([np.iinfo(dtype).min, np.iinfo(dtype).max], -_EXACT, _EXACT)
    known = np.nan_to_num(special).clip(low, high).astype(dtype)
    known = known[known == special][:64]
    tried = [0.0, 1.0, -1.0, -1e6, 1e6]
    if transformers.function_of(stage.transformer) is not None:
        rough = transformers.is_rough(stage.transformer)  # it may grow fast
        tried[3:] = (-100.0, 100.0) if rough else (low, high)
    others = np.clip(tried, max(low, np.ceil(least)), high).astype(dtype)
    # a strict encoder refuses all others
    return known if stage.strict and len(known) else np.concatenate([known, others])


def _matrix(stage: ColumnStage, columns: Sequence[Array]) -> Any:
    texts = [column.dtype == np.object_ for column in columns]
    if any(texts) and not all(texts):  # each column of a frame has its own dtype
        names = getattr(stage.transformer, "feature_names_in_", range(len(columns)))
        return frame_of(columns).set_axis(names, axis=1)
    matrix = np.column_stack(columns)
    if stage.sparse:
        from scipy.sparse import csr_matrix

        return csr_matrix(matrix)
    return matrix


def frame_of(columns: Sequence[Array]) -> Any:
    from pandas import DataFrame, Series

    # pandas makes NaN of None where it finds the dtype by itself
    return DataFrame({i: Series(x, dtype=x.dtype) for i, x in enumerate(columns)})


def _called(
    transformer: Any, rows: Any, *, finite: bool = True, errors: Any = "ignore"
) -> Any:
    from sklearn import config_context

    steady = np.errstate(all=errors, under="ignore")
    with no_warnings(), config_context(assume_finite=finite), steady:
        return transformer.transform(rows)


def _dense(answer: Any) -> Array:
    return np.asarray(answer.toarray() if hasattr(answer, "tocsr") else answer)
