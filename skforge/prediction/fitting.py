"""Compiles a fitted model for ``CompiledForest.fit``, and checks the result."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.pipeline.split import Split
from skforge.compiler.runtime.auto import AutoModule
from skforge.compiler.runtime.module import CompiledModule
from skforge.compiler.runtime.schedules import schedule_table
from skforge.config import tuning_seconds
from skforge.exceptions import PerformanceWarning, UnsupportedModelError, warn
from skforge.prediction.dispatch import Choice, choose, compiled, searched, size_ranges
from skforge.prediction.division import read_divided
from skforge.prediction.fallback import who_answers, why_fallback
from skforge.prediction.members import read_members
from skforge.prediction.predictor import Predictor
from skforge.prediction.verification import sample_rows, verify, verify_members
from skforge.sources.delegation import tags_of
from skforge.sources.members import Members
from skforge.tuning.result import TuningResult
from skforge.tuning.search.ranges import range_text

#: Sample rows that a search may use.
TUNING_ROWS = 4096

_LOG = logging.getLogger("skforge")


@dataclass(frozen=True, slots=True)
class Made:
    """A compiled model, checked against its source."""

    forest: Forest
    split: Split | Members | None
    module: CompiledModule | AutoModule
    choice: Choice
    found: TuningResult | None
    gpu_min_rows: int | None
    seconds: float  # without the search
    predictor: Predictor
    fallback: str  # why the model itself answers rows like X, or ""


def make(wrapper: Any, model: Any, X: Any) -> Made:
    """Compile a fitted model as the parameters of a wrapper ask, or its members."""
    try:
        return _made_whole(wrapper, model, X)
    except UnsupportedModelError as error:
        members = read_members(wrapper, model, X, error)
    first = members.forests[0]  # stands for all
    predictor = Predictor(first._compiled().module, model, members)
    verify_members(predictor, X)
    predictor.counters.reset()
    asked = wrapper.schedule, wrapper.batch_sizes, first.forest_, wrapper.target
    return Made(
        first.forest_,
        members,
        predictor.module,
        choose(*asked, wrapper.reduction),
        first.tuning_result_,
        first.gpu_min_rows_,
        sum(one.compile_time_ for one in members.forests),
        predictor,
        "",
    )


def _made_whole(wrapper: Any, model: Any, X: Any) -> Made:
    start = time.perf_counter()
    reduction, least = wrapper.reduction, wrapper.gpu_min_rows
    forest, split = read_divided(model, X)
    first = None if split is None else split.start
    sizes = wrapper.batch_sizes
    choice = choose(wrapper.schedule, sizes, forest, wrapper.target, reduction)
    module = compiled(forest, choice, reduction, least)
    if schedule_table(wrapper.schedule) is not None:  # the user's own
        module.check_schedules()
    found = None
    if isinstance(wrapper.schedule, str) and wrapper.schedule == "auto":
        searching = time.perf_counter()
        if _searches(wrapper):
            made = Predictor(module, model, first)
            choice, found = _search(wrapper, made, choice, X)
        start += time.perf_counter() - searching
        if found is not None:
            module = compiled(forest, choice, reduction, least, module)
    crossover = None
    if isinstance(module, AutoModule):
        measured = least is None and choice.gpu_min_rows is None
        if measured and wrapper.tuning != "off":
            module.find_crossover()
        crossover = module.gpu_min_rows
    for part in module.parts:
        if part.target.is_gpu:
            part.compile_all()
        else:
            part.kernels.kernel(0)  # calls compile the others when they need them
    seconds = time.perf_counter() - start
    predictor = Predictor(module, model, first)
    verify(predictor, X, tags_of(model, forest).input_tags.allow_nan)
    fallback = why_fallback(predictor, X)
    if fallback:
        warn(fallback, PerformanceWarning)
    predictor.counters.reset()
    result = Made(
        forest, split, module, choice, found, crossover, seconds, predictor, fallback
    )
    if _LOG.isEnabledFor(logging.INFO):
        _tell(wrapper, model, result)
    return result


def _tell(wrapper: Any, model: Any, made: Made) -> None:
    """Log what was chosen, and why."""
    found, trees, target = made.found, made.forest.n_trees, made.module.target
    _LOG.info("fit: %s, %d trees, for %s", type(model).__name__, trees, target)
    for part in made.split.parts if made.split else ():
        why = f": {part.why}" if part.why else ""
        _LOG.info("fit: step %s %s%s", part.name, part.where, why)
    why = "the schedule parameter"
    if schedule_table(wrapper.schedule) is None:
        why = "the defaults, as nothing was searched"
    if found is not None:
        why = f"the {found.strategy} search of {found.seconds:.2f} s"
    for batch, schedule in sorted(made.module.schedules.items(), key=lambda s: s[0][0]):
        _LOG.info("fit: %s rows run %r, from %s", range_text(batch), schedule, why)
    for note in () if found is None else found.notes:
        _LOG.info("fit: %s", note)
    if made.gpu_min_rows is not None:
        _LOG.info("fit: from %d rows on, the GPU answers", made.gpu_min_rows)
    state = {"_fallback": made.fallback, "_split": made.split}
    _LOG.info("fit: %s", who_answers(state))


def _searches(wrapper: Any) -> bool:
    """Tell whether a wrapper asks for a search."""
    if not isinstance(wrapper.tuning, str):
        return True
    never = wrapper.tuning_budget is None and tuning_seconds(1.0) == 0.0
    return wrapper.tuning != "off" and not never


def _search(
    wrapper: Any, predictor: Predictor, choice: Choice, X: Any
) -> tuple[Choice, TuningResult | None]:
    """Search schedules for the requested ranges, on rows as kernels read them."""
    return searched(
        wrapper.tuning,
        choice,
        predictor.module,
        sample_rows(predictor, X, TUNING_ROWS),
        reduction=wrapper.reduction,
        ranges=size_ranges(wrapper.batch_sizes),
        n_jobs=wrapper.n_jobs,
        budget=wrapper.tuning_budget,
        random_state=wrapper.random_state,
        verbose=wrapper.verbose,
    )
