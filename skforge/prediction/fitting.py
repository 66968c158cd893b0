"""Reads a fitted model and compiles it for ``CompiledForest.fit``; checks the result.

A pipeline is divided into steps that run in their library and a rest. Where the model
itself answers, a warning says why, and which conversion helps.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skforge._compat import no_warnings
from skforge.compiler.backend import backend_of
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.engine.schedules import schedule_table
from skforge.exceptions import (
    InvalidInputError,
    PerformanceWarning,
    SkforgeError,
    UnsupportedModelError,
    warn,
)
from skforge.forest.forest import Forest
from skforge.frontends import no_member
from skforge.frontends.base import is_compiled, is_pipeline, last_step
from skforge.frontends.members import (
    has_members,
    named_members,
    starts_from_model,
)
from skforge.frontends.pipeline import split as splits
from skforge.frontends.pipeline.transformers import of_first
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import CompiledModule
from skforge.prediction.choose_targets import (
    TargetChoice,
    choose,
    compiled,
    kernels_of,
    size_ranges,
)
from skforge.prediction.delegation import tags_of
from skforge.prediction.given_rows import GivenRows, take_rows
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.verification import (
    SAMPLE_ROWS,
    sample_rows,
    verify,
    verify_members,
)
from skforge.rows.frames import coded_columns, is_pandas, placed
from skforge.runtime.float_errors import own_arithmetic
from skforge.sources.base import Source
from skforge.sources.find import read_model, source_of
from skforge.sources.stored_model.declined import conversion
from skforge.sources.wrappers.members import (
    Members,
    answers_of,
    from_zero,
    orders_of,
    rows_of_members,
)
from skforge.tuning.result import TuningResult
from skforge.tuning.search.ranges import range_text
from skforge.tuning.tuner import Tuner

#: Rows of X that members are compiled with; those that are tried one by one, of a
#: pipeline, and where the model itself answers.
ROWS, TRIED, _TRIED = 4096, 4, 16
#: Sample rows that a search may use.
TUNING_ROWS = 4096

_LOG = logging.getLogger("skforge")


def read_members(
    wrapper: Any, model: Any, given: GivenRows, error: UnsupportedModelError
) -> Members:
    """Compile each member of a fitted model that can be compiled.

    Raise if there is none; ``error`` says why the whole model cannot be compiled.
    """
    last = model
    while is_pipeline(last):
        last = last_step(last)
    if not has_members(last):
        raise error
    X = _rows_for_members(model, given)
    inside, rows_of = named_members(model), rows_of_members(model, X)
    params = {**wrapper.get_params(deep=False), "prefit": True}
    params["tuning"] = _tuning_of_each(wrapper, len(inside))
    params["tuning_budget"] = "deprecated"
    steps = model.steps[:-1] if is_pipeline(model) else []
    parts = [part for name, step in steps for part in _parts(name, step, None, "")]
    compiled: list[Any] = []
    orders: list[Any] = []
    pair = np.array([0, 1])  # more rows might need another kernel
    refused: UnsupportedModelError | None = None
    for (name, member), rows in zip(inside.items(), rows_of, strict=True):
        fast, why = None, "" if rows is not None else "no prediction asks it"
        if rows is not None and not is_compiled(member):
            fast, reason = _compiled_member(wrapper, params, member, rows)
            if fast is None:
                refused = refused or no_member(model, reason)
                why = reason.partition(". ")[0].rpartition("; ")[2].removesuffix(".")
        compiled.append(fast)
        own = {} if fast is None else orders_of(fast, member, take_rows(rows, pair))
        orders.append(own)
        parts += _parts(name, member, fast, why)
    stages = None
    if starts_from_model(model):
        without = {**params, "estimator": from_zero(model), "tuning": "off"}
        stages = type(wrapper)(**without).fit(X)
        stages.join_whole()
        kind = f"{len(model.estimators_)} stages"
        parts.append(splits.StepPart(0, "estimators_", kind, "compiled", ""))
    if stages is None and not any(member is not None for member in compiled):
        if refused is None and any(map(is_compiled, inside.values())):
            refused = no_member(model, "all are compiled already; use it as it is.")
        raise refused or error
    members = Members(tuple(parts), tuple(compiled), tuple(orders), {}, stages)
    row = given.one(0)
    return replace(members, first=answers_of(members.around(model), row))


def _rows_for_members(model: Any, given: GivenRows) -> Any:
    if not given.n:
        raise InvalidInputError(
            f"The members of {type(model).__name__} are compiled with the rows that "
            "they get, and X has 0 rows. Pass some rows; to explain, take a member."
        )
    at = np.linspace(0, given.n - 1, min(max(2, given.n), ROWS)).astype(int)
    return take_rows(given.all, at)  # a single one twice


def _tuning_of_each(wrapper: Any, n_members: int) -> Any:
    """Return the search for one of several members, which share the budget."""
    tuning, budget = wrapper.tuning, budget_of(wrapper) or tuning_seconds(4.0)
    if isinstance(tuning, str) and tuning != "off" and budget:
        tuning = Tuner(tuning)
    if isinstance(tuning, Tuner) and budget:
        tuning = replace(tuning, budget=budget / n_members)
    return tuning


def _compiled_member(
    wrapper: Any, params: Mapping[str, Any], member: Any, rows: Any
) -> tuple[Any, str]:
    """Return a member compiled, or None and why it cannot be."""
    try:
        fast = type(wrapper)(**{**params, "estimator": member}).fit(rows)
        fast.join_whole()  # the whole model is compared, or answers
    except UnsupportedModelError as refused:
        return None, str(refused)
    except (AttributeError, ValueError) as error:  # its own predict may fail
        if isinstance(error, SkforgeError):
            raise
        return None, str(error)
    return fast, ""


def _parts(name: str, member: Any, fast: Any, why: str) -> list[splits.StepPart]:
    ours = type(member).__module__.startswith("sklearn.")
    where = "runs in scikit-learn" if ours else "runs as it is"
    if fast is not None or is_compiled(member):
        where = "compiled"
    split = vars(fast).get("_split") if fast is not None else None
    inside = [] if split is None else split.parts
    return [
        splits.StepPart(0, name, type(member).__name__, where, why),
        *(replace(part, depth=part.depth + 1) for part in inside),
    ]


@dataclass(frozen=True, slots=True)
class FitResult:
    """A compiled model, checked against its source."""

    predictor: ForestPredictor
    split: splits.PipelineSplit | Members | None
    choice: TargetChoice
    search: TuningResult | None
    gpu_min_rows: int | None
    seconds: float  # without the search
    fallback: str = ""  # why the model itself answers rows like X


def budget_of(wrapper: Any) -> float | None:
    budget, deprecated = getattr(wrapper.tuning, "budget", None), wrapper.tuning_budget
    return deprecated if budget is None and deprecated != "deprecated" else budget


@own_arithmetic
def make(wrapper: Any, model: Any, X: Any) -> FitResult:
    if wrapper.tuning_budget != "deprecated":
        warn(
            "tuning_budget was deprecated in 0.2 and will be removed in 0.4; use "
            "tuning=Tuner(budget=...), with Tuner of skforge.tuning.",
            FutureWarning,
        )
    given = GivenRows(X)
    try:
        return _compiled_whole(wrapper, model, given)
    except UnsupportedModelError as error:
        members = read_members(wrapper, model, given, error)
    first = members.forests[0]  # stands for all
    module = first._compiled().module
    source = source_of(model, module.forest, members)
    predictor = ForestPredictor(module, source, members)
    verify_members(predictor, given)
    predictor.sample = given.kept()
    predictor.counters.reset()
    asked = wrapper.schedule, wrapper.batch_sizes, first.forest_, wrapper.target
    choice = choose(*asked, wrapper.reduction)
    seconds = sum(member.compile_time_ for member in members.forests)
    search = first.tuning_result_, first.gpu_min_rows_
    return FitResult(predictor, members, choice, *search, seconds)


def _compiled_whole(wrapper: Any, model: Any, given: GivenRows) -> FitResult:
    start = time.perf_counter()
    reduction, least = wrapper.reduction, wrapper.gpu_min_rows
    forest, split = read_divided(model, given)
    first = None if split is None else split.start
    sizes = wrapper.batch_sizes
    choice = choose(wrapper.schedule, sizes, forest, wrapper.target, reduction)
    module = compiled(forest, choice, reduction, least)
    if schedule_table(wrapper.schedule) is not None:  # the user's own
        module.check_schedules()
    source, tuned = source_of(model, forest, first), None
    if isinstance(wrapper.schedule, str) and wrapper.schedule == "auto":
        searching = time.perf_counter()
        asked = wrapper.tuning != "off" and (
            budget_of(wrapper) is not None or tuning_seconds(1.0) > 0
        )
        if asked or not isinstance(wrapper.tuning, str):
            choice, tuned = _search(wrapper, module, source, choice, given)
        start += time.perf_counter() - searching
        if tuned is not None:
            module = compiled(forest, choice, reduction, least, module)
    crossover = None
    if isinstance(module, AutoModule):
        measured = least is None and choice.gpu_min_rows is None
        if measured and wrapper.tuning != "off":
            module.find_crossover()
        crossover = module.gpu_min_rows
    for part in module.parts:
        if backend_of(part.target).native:
            part.kernels.kernel(0)  # calls compile the others when they need them
        else:
            part.compile_all()
    seconds = time.perf_counter() - start
    predictor = ForestPredictor(module, source, first)
    verify(predictor, given, tags_of(model, forest).input_tags.allow_nan)
    predictor.sample = given.kept()
    fallback = why_fallback(predictor, given)
    if slow := fallback or why_steps(split):
        warn(slow, PerformanceWarning)
    predictor.counters.reset()
    result = FitResult(predictor, split, choice, tuned, crossover, seconds, fallback)
    if _LOG.isEnabledFor(logging.INFO):
        _tell(wrapper, model, result)
    return result


def _tell(wrapper: Any, model: Any, result: FitResult) -> None:
    search, module = result.search, result.predictor.module
    trees = module.forest.n_trees
    _LOG.info("fit: %s, %d trees, for %s", type(model).__name__, trees, module.target)
    for part in result.split.parts if result.split else ():
        why = f": {part.why}" if part.why else ""
        _LOG.info("fit: step %s %s%s", part.name, part.where, why)
    why = "the schedule parameter"
    if schedule_table(wrapper.schedule) is None:
        why = "the defaults, as nothing was searched"
    if search is not None:
        why = f"the {search.strategy} search of {search.seconds:.2f} s"
    for batch, schedule in sorted(module.schedules.items(), key=lambda s: s[0][0]):
        _LOG.info("fit: %s rows run %r, from %s", range_text(batch), schedule, why)
    for note in () if search is None else search.notes:
        _LOG.info("fit: %s", note)
    if result.gpu_min_rows is not None:
        _LOG.info("fit: from %d rows on, the GPU answers", result.gpu_min_rows)
    state = {"_fallback": result.fallback, "_split": result.split}
    _LOG.info("fit: %s", who_answers(state))


def _search(
    wrapper: Any,
    module: CompiledModule | AutoModule,
    source: Source,
    choice: TargetChoice,
    given: GivenRows,
) -> tuple[TargetChoice, TuningResult]:
    """Search the schedules of every target; two targets share the budget.

    ``tuning`` is a strategy's name or any object with a method like
    :meth:`Tuner.tune`, which receives the options; a ``Tuner`` also puts kernels into
    the cache of the module. Return the choice with the schedules found, and all trials.
    """
    tuning = wrapper.tuning
    tuner = Tuner(tuning) if isinstance(tuning, str) else tuning
    rows, kernels = sample_rows(source, given, TUNING_ROWS), kernels_of(module)
    names = "reduction", "n_jobs", "random_state", "verbose"
    options = {name: getattr(wrapper, name) for name in names}
    options["ranges"] = size_ranges(wrapper.batch_sizes)

    def tune(target: Target, budget: float | None) -> TuningResult:
        shared = {"kernels": kernels[target]} if isinstance(tuner, Tuner) else {}
        how = {**options, **shared, "target": target, "budget": budget}
        return tuner.tune(module.forest, rows, **how)

    budget = budget_of(wrapper)
    if choice.gpu is None:
        tuned = tune(choice.target, budget)
        choice = replace(choice, table=dict(tuned.table))
    else:
        half = None if budget is None else budget / 2
        cpu, gpu = (tune(target, half) for target in (choice.target, choice.gpu))
        choice = replace(choice, table=dict(cpu.table), gpu_table=dict(gpu.table))
        tuned = cpu.beside(gpu)
    for note in tuned.notes if wrapper.verbose else ():  # why nothing was timed, say
        print(f"tuning: {note}", file=sys.stderr, flush=True)
    return choice, tuned


# ------------------------------------------------------------ pipelines


def read_divided(
    model: Any, given: GivenRows
) -> tuple[Forest, splits.PipelineSplit | None]:
    """Return a model's forest; of a pipeline, that of the last steps that fold.

    Fewer fold if the forest after them does not read the given rows as they arrive.
    """
    if not splits.divides(model):
        return _placed(read_model(model), given.all), None
    why: dict[str, str] = {}
    steps = splits.divided_steps(model)
    names = [name for name, _ in steps]
    last = len(names) - 1
    known = splits.refusals(model)
    branches = [name for name, step in steps if isinstance(step, splits.Branch)]
    first = 0  # after the last step that is refused, or that has such a step inside
    for i, (name, step) in enumerate(steps):
        outside = [] if isinstance(step, splits.Branch) else branches  # of it by now
        if any(_is_in(one, [name]) and not _is_in(one, outside) for one in known):
            first = i + 1
    starts: list[int | None] = list(range(max(first, min(1, last)), last + 1))
    for start in starts if first else [None, *starts]:
        forest, unread = _tried(model, start, last, given)
        if forest is not None:
            if not start:  # it gets X itself
                forest = _placed(forest, given.all)
            if start is None and not is_pipeline(model):
                return forest, None
            return forest, splits.divided(model, start, {**known, **why})
        why = {names[start or 0]: unread}  # that of the last step that fails counts
    raise AssertionError  # the last step by itself is read, or raises


def _placed(forest: Forest, X: Any) -> Forest:
    """Return a forest that knows by X which columns have LightGBM's categories."""
    told = forest.source == "lightgbm" and is_pandas(X)
    fits = told and X.shape[1] == forest.n_features
    return placed(forest, coded_columns(X)) if fits else forest


def _tried(
    model: Any, start: int | None, last: int, given: GivenRows
) -> tuple[Forest | None, str]:
    rest = splits.rest_of(model, start)
    if is_compiled(rest):
        return rest.forest_, ""
    if start == last:
        return read_model(rest), ""
    steps = splits.flat_steps(rest)
    name, step = steps[0]
    if of_first(steps, "n_features_in_") is None:
        return None, f"{name!r} does not store how many columns its rows have"
    try:
        forest = read_model(rest)
        unread = "" if start is None else _unread(model, forest, start, given)
    except UnsupportedModelError as error:
        return None, splits.reason(name, step, error)
    return None if unread else forest, unread


def _is_in(name: str, outer: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}__") for one in outer)


def table_of(wrapper: Any) -> str:
    check_is_fitted(wrapper)
    split = wrapper.__dict__.get("_split")
    if split is None:
        raise InvalidInputError(
            "The level 'pipeline' shows where the steps of a Pipeline run, and this "
            "model has no such steps; use another level, such as 'loops'."
        )
    return f"{split}\n\n{who_answers(wrapper.__dict__)}".rstrip()


def _unread(model: Any, forest: Forest, start: int, given: GivenRows) -> str:
    source = source_of(model, forest, start)
    name, unread = splits.divided_steps(model)[start][0], ""
    for i in given.spread(TRIED)[: given.n]:
        with no_warnings():  # fit has the rows checked again
            prepared = source.prepared(given.one(i))
            if source.rows(prepared, "predict_raw") is not None:
                return ""
        rows = getattr(prepared, "rows", prepared)
        form = getattr(rows, "dtype", type(rows).__name__)
        form = "sparse" if hasattr(rows, "tocsr") else form
        unread = f"{name!r} gets {form} rows, which cannot be folded"
    return unread


# ------------------------------------------------------------ who answers


def who_answers(state: Mapping[str, Any]) -> str:
    """Return who answers rows like those of ``fit``; "" for a loaded object."""
    said, split = state.get("_fallback", ""), state.get("_split")
    if said or "_fallback" not in state:
        return str(said)
    if isinstance(split, Members):
        return "Rows are answered by the model's own code, with compiled members."
    first = (split and split.start) or 0
    after = f" after {first} step{'s'[: first > 1]} in their library" if first else ""
    return f"Rows like those given to fit are answered by compiled code{after}."


def why_steps(split: Any) -> str:
    parts = split.parts if isinstance(split, splits.PipelineSplit) else ()
    if not (why := [part for part in parts if part.blamed]):
        return ""
    first, *others = why
    more = f"; so do {len(others)} more, see inspect('pipeline')" if others else ""
    return (
        f"The step {first.name!r} {first.where} in each call, before the compiled "
        f"code: {first.why}{more}."
    )


def why_fallback(predictor: ForestPredictor, given: GivenRows) -> str:
    """Return why the model itself answers rows like those given, and the mend.

    Return "" if compiled code answers. ``predictor`` has counted the calls with which
    ``fit`` compared its answers.
    """
    counts = predictor.counters.read()
    compiled = sum(counts[route]["calls"] for route in ("entry", "kernel", "steps"))
    if compiled or not given.n:
        return ""
    X, forms = given.some(SAMPLE_ROWS), dict(predictor.of_forms)

    def answer(rows: Any) -> tuple[Any, int]:
        """Return predictions and the calls of the model; None after an error."""
        predictor.counters.reset()
        with no_warnings(), suppress(Exception):  # of any library
            answers = predictor.answer("predict", rows)
            return answers, predictor.counters.read()["library"]["calls"]
        return None, 0

    def helps(rows: Any) -> bool:
        answers, calls = answer(rows)
        return answers is not None and not calls and np.array_equal(answers, expected)

    expected, calls = answer(X)
    if not calls:
        return ""
    if said := conversion(X, helps):
        mend = f": {said}"
    else:
        mend = "; no conversion that was tried helps."
        sample = GivenRows(X)
        n = min(_TRIED, sample.n)
        single = [answer(sample.one(i)) for i in range(n)]
        alone = sum(answers is not None and not calls for answers, calls in single)
        if alone:
            mend += f" By themselves, {alone} of {n} rows are answered by kernels."
    predictor.of_forms = forms  # without those of the trials
    model = type(predictor.source.model).__name__
    start = f"Rows like those given to fit are answered by the {model} itself"
    return f"{start}, at its speed{mend}"
