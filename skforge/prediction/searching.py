"""Searches schedules for ``CompiledForest.fit``, on its own rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from skforge._typing import Array
from skforge.compiler.target import Target
from skforge.config import tuning_seconds
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import CompiledModule
from skforge.prediction.choose_targets import TargetChoice, kernels_of, size_ranges
from skforge.prediction.given_rows import GivenRows, kernel_rows
from skforge.sources.base import Source
from skforge.tuning.result import TuningResult
from skforge.tuning.tuner import Tuner

#: Sample rows that a search may use.
TUNING_ROWS = 4096


def budget_of(wrapper: Any) -> float | None:
    budget, deprecated = getattr(wrapper.tuning, "budget", None), wrapper.tuning_budget
    return deprecated if budget is None and deprecated != "deprecated" else budget


def search(
    wrapper: Any,
    module: CompiledModule | AutoModule,
    source: Source,
    choice: TargetChoice,
    given: GivenRows,
) -> tuple[TargetChoice, TuningResult | None]:
    """Search the schedules of every target, if that is asked for.

    Two targets share the budget.
    ``tuning`` is a strategy's name or any object with a method like
    :meth:`Tuner.tune`, which receives the options; a ``Tuner`` also puts kernels into
    the cache of the module. Return the choice with the schedules found, and all trials;
    without a search, the same choice and None.
    """
    tuning, budget = wrapper.tuning, budget_of(wrapper)
    if not isinstance(wrapper.schedule, str) or wrapper.schedule != "auto":
        return choice, None
    asked = tuning != "off" and (budget is not None or tuning_seconds(1.0) > 0)
    if isinstance(tuning, str) and not asked:
        return choice, None
    tuner = Tuner(tuning) if isinstance(tuning, str) else tuning
    rows, kernels = _sample(source, given), kernels_of(module)
    names = "reduction", "n_jobs", "random_state", "verbose"
    options = {name: getattr(wrapper, name) for name in names}
    options["ranges"] = size_ranges(wrapper.batch_sizes)

    def tune(target: Target, budget: float | None) -> TuningResult:
        shared = {"kernels": kernels[target]} if isinstance(tuner, Tuner) else {}
        how = {**options, **shared, "target": target, "budget": budget}
        return tuner.tune(module.forest, rows, **how)

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


def _sample(source: Source, given: GivenRows) -> Array | None:
    """Return some rows, unless the forest of another form of rows reads them."""
    if not given.n:
        return None
    X = source.prepared(given.some(TUNING_ROWS))
    form = source.form(X)
    own = form is None or source.of_form(form) in (source, None)
    return kernel_rows(source, X) if own else None
