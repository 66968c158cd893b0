"""scikit-learn's Pipeline: the forest of the last step, on the pipeline's own rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import ZERO_THRESHOLD, Missing
from skforge.forest.forest import Forest
from skforge.frontends import base, read_forest, read_forests, refuse_untrained
from skforge.frontends.checks import IntRange, is_onedal
from skforge.frontends.members import fitted_members, is_wrapper
from skforge.frontends.pipeline import fold, transformers
from skforge.frontends.pipeline.bounds import (
    Bounds,
    accepted,
    bounds_of,
    refused_pieces,
)
from skforge.frontends.pipeline.codes import UNKNOWN, NumberCodes, TextCodes
from skforge.frontends.pipeline.columns import (
    Column,
    ColumnPlan,
    plan_of,
    sources_of,
    with_codes,
)
from skforge.frontends.pipeline.predicates import on_rows, predicates_of
from skforge.frontends.pipeline.split import flat
from skforge.frontends.pipeline.transformers import cannot_fold


def _is_of_onedal(model: Any) -> bool:
    inside = fitted_members(model) if is_wrapper(model) else []
    return is_onedal(model) or any(map(_is_of_onedal, map(base.unwrap, inside)))


def codes_of(
    plan: ColumnPlan, tested: list[int], takes_nan: bool
) -> tuple[dict[int, TextCodes], dict[int, Array]]:
    """Return the codes of each column of texts, and a value for each code.

    A column gets the fewest codes that tell apart what the trees can: those of the
    texts, and one for missing values if no text has the same outputs.
    """
    codes, points = {}, {}
    for source, known in plan.texts.items():
        columns = [plan.columns[i] for i in tested if plan.columns[i].source == source]
        every = np.array([*known, UNKNOWN, None], object)[:-1]
        fine = accepted(plan, source, every, takes_nan)
        values = every[:-1][fine[:-1]]
        outputs = _outputs(plan, columns, source, values)
        if len(columns) == 1:  # all tests of it are thresholds then
            order = np.argsort(outputs[:, 0], kind="stable")
            values, outputs = values[order], outputs[order]
        known_texts = values.tolist()
        refused = every[:-1][~fine[:-1]].tolist() if fine[-1] else []
        others: dict[str, float | None] = {}
        coded: list[Any] = [*known_texts]
        absent = None
        # a missing text is NaN wherever frames are read, so unknown ones give way
        every_kind: list[tuple[str, Any]] = [("nan", np.nan), ("none", None)]
        more, met = _na_of(plan, source), list[Any]()
        for name, value in [*every_kind, ("unknown", UNKNOWN), *more]:
            others[name] = None
            alone = np.array([value], object)
            is_unknown = name == "unknown"
            taken = fine if is_unknown else accepted(plan, source, alone, takes_nan)
            if not taken[-1]:
                continue
            output = _outputs(plan, columns, source, alone)
            # a step that returns frames may give None beside texts as NaN
            if not _is_steady(plan, columns, source, [*values[:1], *met, value]):
                continue
            if more:
                met.append(value)
            if absent is None:
                absent, others[name] = output, np.nan
                continue
            alike = _alike(output, np.concatenate([absent, outputs]))
            if not len(alike):
                outputs = np.concatenate([outputs, output])
                alike = np.array([len(outputs)])
                coded.append(value)
            others[name] = np.nan if alike[0] == 0 else float(alike[0] - 1)
        if not coded and (columns or absent is None):
            cannot_fold(f"The pipeline rejects every string in column {source}")
        if not more:
            others["na"] = others["unknown"] if _encodes(plan, source) else None
        codes[source] = TextCodes(tuple(known_texts), refused=tuple(refused), **others)
        points[source] = np.array([*coded, ""], object)[:-1]
    return codes, points


def _encodes(plan: ColumnPlan, source: int) -> bool:
    return all(
        transformers.kind_of(stage.transformer).encodes
        and not getattr(stage.transformer, "keeps_na", False)
        for stage in plan.stages
        for column in stage.inputs
        if column.source == source and column.dtype == np.object_
    )


def _na_of(plan: ColumnPlan, source: int) -> list[tuple[str, Any]]:
    """Return pandas' NA if all steps that read a column of the rows take it."""
    first = [
        stage.transformer
        for stage in plan.stages
        for column in stage.inputs
        if column.source == source and column.stage is None
    ]
    if not first or not all(map(transformers.takes_na, first)):
        return []
    from pandas import NA

    return [("na", NA)]


def _is_steady(
    plan: ColumnPlan, columns: list[Column], source: int, values: list[Any]
) -> bool:
    """Tell whether each value has the same outputs alone as beside the others."""
    each = np.array([*values, None], object)[:-1]
    together = _outputs(plan, columns, source, each)
    return all(
        len(_alike(row, _outputs(plan, columns, source, each[i : i + 1])))
        for i, row in enumerate(together)
    )


def _outputs(
    plan: ColumnPlan, columns: list[Column], source: int, values: Array
) -> Array:
    if not columns or not len(values):
        return np.zeros((len(values), len(columns)))
    columns_read = plan.values(columns, {source: values})
    return np.column_stack(columns_read).astype(float)


def _alike(row: Array, others: Array) -> Array:
    same = (others == row) | (np.isnan(others) & np.isnan(row))
    return np.flatnonzero(same.all(axis=1))


def refuse(model: Any) -> None:
    last = base.last_step(model)
    if not base.is_compiled(last):
        refuse_untrained(last)


class FoldedPipeline(NamedTuple):
    forest: Forest  # the forest on the pipeline's own rows, with codes in coded columns
    inner: Forest  # the last step's own forest, on transformed rows
    bounds: Bounds  # the numbers that the pipeline takes
    texts: dict[int, TextCodes]  # the codes of each column of texts
    #: The codes, or the checks, of some columns of numbers.
    numbers: dict[int, NumberCodes]
    #: Further forests on the same rows, if the last step is a wrapper around several.
    more: tuple[Forest, ...] = ()
    #: Columns of which the steps read alone what is missing: of numbers or of texts.
    either: tuple[int, ...] = ()


def folded(
    model: Any,
    iteration_range: tuple[int, int] | None = None,
    dtype: Any = np.float64,
    form: Sequence[Any] | None = None,
) -> FoldedPipeline:
    """Fold the transformers of a fitted pipeline, or raise UnsupportedModelError.

    ``dtype`` is the rows'. With ``form``, each column has its own, and the forest reads
    float64.
    """
    model = flat(model)
    for name, step in model.steps[:-1]:
        if not transformers.is_absent(step):
            transformers.refuse_members(name, step)
    last = base.last_step(model)
    if _holds_pipelines(last):
        raise UnsupportedModelError(
            f"The last step of the pipeline, {type(last).__name__}, is around several "
            "pipelines, so no step can be folded into it; CompiledForest(pipeline) "
            "runs the steps in their own library."
        )
    inner: tuple[Forest, ...]
    if iteration_range is None:
        inner = read_forests(last)
    else:
        inner = (read_forest(last, iteration_range),)
    if any(forest.source == "lightgbm" for forest in inner):
        _refuse_frames(model, last)
    if _is_of_onedal(last):
        cannot_fold("oneDAL sums in the dtype that the steps give rows")
    plan = plan_of(model, inner[0], dtype, form)
    ranks = base.is_a(last, "xgboost.sklearn.XGBRanker")
    if ranks and len(plan.columns) == inner[0].n_features + 1:
        cannot_fold("The steps return a column of queries, which XGBRanker drops")
    own = inner[0]
    if encoded := _numbers_of(inner):
        plan = with_codes(plan, encoded)
        inner = tuple(replace(forest, category_names=()) for forest in inner)
    _check(plan, inner)
    inner = tuple(_of_format(plan.sparse, forest) for forest in inner)
    takes_nan = _takes_nan(last, len(plan.columns), bool(plan.sparse))
    narrow = min((forest.input_dtype for forest in inner), key=attrgetter("itemsize"))
    bounds = bounds_of(plan, narrow, takes_nan)
    pieces = fold.pieces_of(plan, inner, bounds)
    refused = refused_pieces(plan, bounds, pieces, takes_nan)
    if any(flags.all() for flags in refused.values()):
        raise UnsupportedModelError(
            f"The pipeline rejects every {plan.dtype} number in some column, so its "
            "steps cannot be folded into the forest; CompiledForest(pipeline) runs "
            "them in their own library."
        )
    features = np.concatenate([forest.feature for forest in inner])
    texts, points = codes_of(plan, np.unique(features).tolist(), takes_nan)
    parts = []
    for forest in inner:
        runs = fold.runs_of(plan, forest, bounds, pieces, refused, points)
        parts.append(fold.parts_of(plan, forest, runs))
    # all forests read the same rows, so their tests share the codes of a column
    ends = np.cumsum([forest.n_predicates for forest in inner])
    source = sources_of(plan.columns)[features]
    joined = fold.joined(parts, ends)
    tests, numbers = predicates_of(joined, source, pieces, refused, texts)
    rows = {
        "n_features": plan.width,
        "feature_names": _feature_names(model, inner[0]),
        "category_names": _names(texts, plan.width),
    }
    first, *more = (
        on_rows(plan, forest, bounds, texts, source, tests, end, rows)
        for forest, end in zip(inner, ends.tolist(), strict=True)
    )
    either = tuple({*range(plan.width)}.difference(_read(plan), texts))
    return FoldedPipeline(first, own, bounds, texts, numbers, tuple(more), either)


def _refuse_frames(model: Any, last: Any) -> None:
    from sklearn.utils._set_output import _get_output_config

    if getattr(getattr(last, "booster_", last), "pandas_categorical", None):
        cannot_fold("LightGBM knows categories of frames by their names")
    for name, step in model.steps[:-1]:
        if _get_output_config("transform", step)["dense"] == "polars":
            cannot_fold(
                f"The step {name!r} returns polars frames, in which LightGBM takes "
                "other numbers for 0"
            )


def _feature_names(model: Any, forest: Forest) -> tuple[str, ...] | None:
    names = transformers.of_first(model.steps, "feature_names_in_")
    if names is not None and not all(isinstance(name, str) for name in names):
        names = None
    if names is None and transformers.begins_with_last(model.steps):
        names = forest.feature_names
    return None if names is None else tuple(map(str, names))


def _read(plan: ColumnPlan) -> Iterator[int]:
    """Yield the columns of the rows of which more is read than what is missing."""
    readers = [s for s in plan.stages if not transformers.is_marker(s.transformer)]
    for columns in plan.columns, *(stage.inputs for stage in readers):
        yield from (column.source for column in columns if column.stage is None)


def _numbers_of(forests: Sequence[Forest]) -> dict[int, tuple[Any, ...]]:
    """Return the numbers that scikit-learn's forests encode, if all encode the same."""
    first, *others = (forest.category_names for forest in forests)
    known = {i: names for i, names in enumerate(first) if names}
    texts = any(isinstance(names[0], str) for names in known.values())
    alike = all(names == first for names in others)
    ours = all(forest.source == "sklearn" for forest in forests)
    return known if ours and alike and not texts else {}


def _holds_pipelines(last: Any) -> bool:
    inside = map(base.unwrap, fitted_members(last) if is_wrapper(last) else [])
    return any(base.is_pipeline(item) or _holds_pipelines(item) for item in inside)


def _of_format(sparse: str, forest: Forest) -> Forest:
    """Return LightGBM's forest for sparse rows: in CSR, it takes -1e-35f as it is."""
    below = np.nextafter(-ZERO_THRESHOLD, -np.inf)
    tests = (forest.threshold == below) & (forest.missing != Missing.ZERO)
    if sparse in ("", "csc") or forest.source != "lightgbm" or not tests.any():
        return forest
    if sparse != "csr":
        cannot_fold(f"The steps of the pipeline give LightGBM a matrix of {sparse}")
    return replace(forest, threshold=np.where(tests, -ZERO_THRESHOLD, forest.threshold))


def _check(plan: ColumnPlan, forests: tuple[Forest, ...]) -> None:
    for forest in forests:
        if forest.aggregate == "linear":
            cannot_fold("The leaves compute with the columns that the steps make")
        if not forest.is_plain:
            raise UnsupportedModelError(
                "The last step of the pipeline knows categories by their names, so no "
                "step can be folded into it; CompiledForest(pipeline) runs the steps "
                "in their own library."
            )
        # after the test of CatBoost's forests, whose hashed columns count, too
        if len(plan.columns) != forest.n_features:
            raise InvalidModelError(
                f"The steps of the pipeline make {len(plan.columns)} columns, but its "
                f"last step was trained on {forest.n_features}; fit the pipeline as a "
                "whole."
            )


def _names(texts: dict[int, TextCodes], width: int) -> tuple[tuple[str, ...], ...]:
    """Return the texts of columns where all others have the code NaN.

    A forest by itself reads other categories of frames, and missing ones, as NaN.
    """
    plain = {
        column: codes.texts
        for column, codes in texts.items()
        if all(code is not None and code != code for code in (codes.unknown, codes.nan))
    }
    return tuple(plain.get(i, ()) for i in range(width)) if plain else ()


#: By the forest that ``load`` returned: what else was found of its pipeline.
_known: WeakKeyDictionary[Forest, tuple[Any, ...]] = WeakKeyDictionary()


def load(model: Any, rounds: IntRange | None = None, dtype: Any = np.float64) -> Forest:
    forest, *others = folded(model, rounds, dtype)
    _known[forest] = tuple(others)
    return forest


def load_alone(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    """Read a fitted pipeline into a forest on its own float64 rows, without codes.

    Texts are codes: their place in ``category_names``.
    """
    pipeline = folded(model, iteration_range)
    coded = [column for column, codes in pipeline.numbers.items() if codes.coded]
    if coded:
        raise UnsupportedModelError(
            f"Tests of column {coded[0]} of the pipeline's rows are true on several "
            "intervals, which a node of a Forest cannot test; use "
            "CompiledForest(pipeline), which compiles it with codes for these "
            "intervals."
        )
    return pipeline.forest


def load_all(model: Any) -> tuple[Forest, ...]:
    pipeline = folded(model)
    return pipeline.forest, *pipeline.more


def fold_of(model: Any, forest: Forest) -> FoldedPipeline:
    if (known := _known.get(forest)) is not None:
        return FoldedPipeline(forest, *known)
    return folded(model, dtype=forest.input_dtype)


def _takes_nan(last: Any, width: int, sparse: bool) -> bool:
    rows: Any = np.full((1, width), np.nan)
    if sparse:  # a random forest accepts them in dense ones only
        from scipy.sparse import csr_matrix

        rows = csr_matrix(rows)
    ask = getattr(last, "transform", None) or last.predict
    with no_warnings():
        try:
            try:
                ask(rows)
            except TypeError:  # an encoder that knows numbers as objects takes no other
                ask(rows.astype(object))
        except ValueError:
            return False
        except (AttributeError, TypeError) as error:  # of a member without the method
            cannot_fold(f"Its own predict fails: {error}")
    return True


_FRONTEND = base.Frontend("sklearn Pipeline", (), base.is_pipeline, load_alone)
base.register(replace(_FRONTEND, refuse=refuse, load_all=load_all))
