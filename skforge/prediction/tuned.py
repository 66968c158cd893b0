"""From a choice of machines to the one whose schedules a search has found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skforge.compiler.forest.forest import Forest
from skforge.prediction.dispatch import Choice
from skforge.tuning.result import TuningResult
from skforge.tuning.tuner import Tuner


def searched(
    tuning: Any, choice: Choice, forest: Forest, rows: Any, **options: Any
) -> tuple[Choice, TuningResult]:
    """Search the schedules of every machine that was chosen.

    Parameters
    ----------
    tuning : str or Tuner
        How; anything with a method ``tune`` like :meth:`Tuner.tune`.
    choice : Choice
        The machines; two share the budget.
    forest : Forest
        What is walked.
    rows : ndarray of shape (n_rows, n_features) or None
        Sample rows.
    **options : dict
        Further arguments of :meth:`Tuner.tune`.

    Returns
    -------
    Choice
        The same machines with the schedules found.
    TuningResult
        Of both machines, the ``machine`` of each trial telling which.
    """
    tuner = Tuner(tuning) if isinstance(tuning, str) else tuning
    if choice.gpu is None:
        result: TuningResult = tuner.tune(forest, rows, target=choice.target, **options)
        return replace(choice, table=dict(result.table)), result
    budget = options.pop("budget", None)
    half = None if budget is None else budget / 2
    cpu, gpu = (
        tuner.tune(forest, rows, target=target, budget=half, **options)
        for target in (choice.target, choice.gpu)
    )
    found = replace(choice, table=dict(cpu.table), gpu_table=dict(gpu.table))
    return found, cpu.beside(gpu)
