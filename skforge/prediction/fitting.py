"""What ``CompiledForest.fit`` does with a fitted model, in order.

The model is read; schedules are chosen; kernels are compiled; the answers are compared
with the model's; and what calls need is kept. If a model cannot be compiled as a whole,
its members are.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from skforge.engine.schedules import schedule_table
from skforge.exceptions import PerformanceWarning, UnsupportedModelError, warn
from skforge.modules.auto import AutoModule
from skforge.prediction.choose_targets import choose, compile_first, compiled
from skforge.prediction.delegation import tags_of
from skforge.prediction.dividing import read_divided
from skforge.prediction.given_rows import GivenRows
from skforge.prediction.member_fits import read_members
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.revived import fitted_state
from skforge.prediction.searching import search
from skforge.prediction.verification import verify, verify_members
from skforge.prediction.who_answers import who_answers, why_fallback, why_steps
from skforge.runtime.float_errors import own_arithmetic
from skforge.sources.find import source_of
from skforge.tuning.search.ranges import range_text

_LOG = logging.getLogger("skforge")


@own_arithmetic
def make(wrapper: Any, model: Any, X: Any) -> dict[str, Any]:
    """Compile a model, check it against its source, and return the fitted state."""
    if wrapper.tuning_budget != "deprecated":
        warn(
            "tuning_budget was deprecated in 0.2 and will be removed in 0.4; use "
            "tuning=Tuner(budget=...), with Tuner of skforge.tuning.",
            FutureWarning,
        )
    given = GivenRows(X)
    try:
        return _whole(wrapper, model, given)
    except UnsupportedModelError as error:
        return _by_members(wrapper, model, given, error)


def _whole(wrapper: Any, model: Any, given: GivenRows) -> dict[str, Any]:
    start = time.perf_counter()
    reduction, least = wrapper.reduction, wrapper.gpu_min_rows
    # read
    source, split = read_divided(model, given)
    forest = source.forest
    # choose
    asked = wrapper.schedule, wrapper.batch_sizes, forest, wrapper.target
    choice = choose(*asked, reduction)
    module = compiled(forest, choice, reduction, least)
    if schedule_table(wrapper.schedule) is not None:  # the user's own
        module.check_schedules()
    searching = time.perf_counter()
    choice, tuned = search(wrapper, module, source, choice, given)
    start += time.perf_counter() - searching
    # compile
    if tuned is not None:
        module = compiled(forest, choice, reduction, least, module)
    measured = least is None and choice.gpu_min_rows is None
    if isinstance(module, AutoModule) and measured and wrapper.tuning != "off":
        module.find_crossover()
    compile_first(module)
    seconds = time.perf_counter() - start
    # compare
    first = None if split is None else split.start
    predictor = ForestPredictor(module, source, first)
    verify(predictor, given, tags_of(model, forest).input_tags.allow_nan)
    predictor.sample = given.kept()
    fallback = why_fallback(predictor, given)
    if slow := fallback or why_steps(split):
        warn(slow, PerformanceWarning)
    predictor.counters.reset()
    # keep
    state = fitted_state(predictor, (wrapper.target, reduction), choice.tables)
    state |= {"_split": split, "_fallback": fallback}
    state |= {"tuning_result_": tuned, "compile_time_": seconds}
    if _LOG.isEnabledFor(logging.INFO):
        _tell(wrapper, model, state)
    return state


def _by_members(
    wrapper: Any, model: Any, given: GivenRows, error: UnsupportedModelError
) -> dict[str, Any]:
    """Do the same with members; ``error`` says why the whole cannot be compiled."""
    members = read_members(wrapper, model, given, error)
    first = members.forests[0]  # stands for all
    module = first._compiled().module
    source = source_of(model, module.forest, members)
    predictor = ForestPredictor(module, source, members)
    verify_members(predictor, given)
    predictor.sample = given.kept()
    predictor.counters.reset()
    asked = wrapper.schedule, wrapper.batch_sizes, first.forest_, wrapper.target
    tables = choose(*asked, wrapper.reduction).tables
    state = fitted_state(predictor, (wrapper.target, wrapper.reduction), tables)
    state |= {"_split": members, "tuning_result_": first.tuning_result_}
    seconds = sum(member.compile_time_ for member in members.forests)
    return state | {"compile_time_": seconds, "gpu_min_rows_": first.gpu_min_rows_}


def _tell(wrapper: Any, model: Any, state: dict[str, Any]) -> None:
    search, module = state["tuning_result_"], state["_predictor"].module
    trees = module.forest.n_trees
    _LOG.info("fit: %s, %d trees, for %s", type(model).__name__, trees, module.target)
    for part in state["_split"].parts if state["_split"] else ():
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
    if state["gpu_min_rows_"] is not None:
        _LOG.info("fit: from %d rows on, the GPU answers", state["gpu_min_rows_"])
    _LOG.info("fit: %s", who_answers(state))
