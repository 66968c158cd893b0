"""A compiled forest, as programs without scikit-learn use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skforge.compiler.target import Target
from skforge.engine import targets
from skforge.engine.cpu.threads import check_n_jobs
from skforge.engine.engine import Engine
from skforge.engine.schedules import Schedules, schedule_table
from skforge.exceptions import check_choice
from skforge.forest.forest import Forest
from skforge.frontends import load_forest
from skforge.modules.methods import Methods
from skforge.runtime.float_errors import own_arithmetic
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import Reduction


class CompiledModule(Methods, Engine):
    """A forest compiled for one target; made by :func:`compile_forest`.

    Calls are safe from many threads at once.

    Attributes
    ----------
    forest : Forest
        The forest that was compiled.
    target : Target
        The machine it was compiled for.
    reduction : {"exact", "reproducible", "fast"}
        How leaf values are summed.
    schedules : dict of (int, int or None) -> Schedule
        The schedule of each range of batch sizes, both ends included.
    """

    @property
    def parts(self) -> tuple[CompiledModule, ...]:
        """The module of each target: this one."""
        return (self,)

    def __repr__(self) -> str:
        kind = "" if self.target.kind == "cpu" else f"{self.target.kind} "
        n = len(set(self.schedules.values()))
        return (
            f"<CompiledModule of {self.forest.n_trees:,} trees, "
            f"{self.forest.n_features:,} features, for {kind}{self.target.cpu}, "
            f"{self.reduction}, {n} schedule{'s' if n != 1 else ''}>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in ("predict_proba", "predict_log_proba"):
                text += (
                    "; its predict returns what a Booster's does, the probabilities of "
                    "a classifier, and CompiledForest has the methods of scikit-learn"
                )
            raise AttributeError(text)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle without machine code; kernels compile again on first use."""
        target = targets.stored_target(self.target)
        facts = self.forest, dict(self.schedules), target, self.reduction, self.n_jobs
        return restored, (*facts, self.contribs_schedule)


@own_arithmetic
def compile_forest(
    forest: object,
    schedule: Schedules = None,
    target: str | Target = "cpu",
    reduction: Reduction = "exact",
    n_jobs: int | None = None,
    contribs_schedule: Schedules = None,
) -> CompiledModule:
    """Compile a fitted model or its library's file, without scikit-learn.

    Parameters
    ----------
    forest : Forest, path, bytes, Booster, ModelProto or fitted estimator
        A forest from :func:`skforge.load_forest`, or anything that it accepts.
    schedule : "auto", str, Schedule, dict of (int, int or None) -> these, or None
        One schedule or a preset's name for every batch size, one of these for each
        range of batch sizes, or the static defaults ("auto" or None).
    target : str or Target, default="cpu"
        "cpu" is this machine's CPU, "cuda" or "hip" its current GPU. "auto" is the
        GPU if a schedule maps loops to one, and the CPU otherwise. "emulated" runs
        GPU schedules on the CPU.
    reduction : {"exact", "reproducible", "fast"}, default="exact"
        ``exact``: the source's bits. ``reproducible``: the same bits for every
        schedule and number of threads. ``fast``: any order of summation.
    n_jobs : int or None
        Maximum threads; None means 1, -1 all.
    contribs_schedule : Schedule, dict of (int, int or None) -> Schedule, or None
        The schedules of ``predict_contribs``, with ``represent("contributions")``;
        None means the static defaults.

    Returns
    -------
    CompiledModule
        Its kernels compile on first use.

    Raises
    ------
    InvalidInputError
        If an argument has a wrong type or value.
    InvalidModelError, UnsupportedModelError
        If the model cannot be read, or cannot be reproduced exactly.
    ScheduleError
        If a schedule does not fit the forest or the target.
    TargetError
        If the target is not available.

    See Also
    --------
    skforge.load : Loads what :func:`skforge.save` wrote, which is compiled already.
    skforge.CompiledForest : Compares with the model and searches for schedules, too.

    Examples
    --------
    >>> import skforge
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> module = skforge.compile_forest(tree)
    >>> module.predict_raw([[0.2], [0.9]])
    array([3., 4.])
    """
    check_choice("reduction", reduction, ("exact", "reproducible", "fast"))
    check_n_jobs(n_jobs)
    table = schedule_table(schedule)
    if not isinstance(forest, Forest):
        forest = load_forest(forest)
    resolved = targets.resolve_target(target, () if table is None else table.values())
    schedules = table or targets.default_table(forest, resolved, reduction)
    explained = schedule_table(contribs_schedule)
    module = CompiledModule(forest, schedules, resolved, reduction, n_jobs, explained)
    if explained is not None:
        module._explained()
    if table is not None:
        module.check_schedules()
    return module


def restored(
    forest: Forest,
    schedules: dict[BatchRange, Schedule],
    target: str | Target,
    reduction: Reduction,
    n_jobs: int | None,
    contribs_schedule: dict[BatchRange, Schedule] | None = None,
) -> CompiledModule:
    """Return a module from a file or another process, after validating its forest."""
    how = schedules, target, reduction, n_jobs, contribs_schedule
    return compile_forest(forest.validate(), *how)


__all__ = ["CompiledModule", "compile_forest"]
