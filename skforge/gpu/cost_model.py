"""The cost model of GPUs: a boosted forest that predicts the time of a schedule.

It predicts the logarithm of the ratio of a row's time to an estimate, so that its
predictions scale to forests larger than those it was trained on. The forest is stored
and run by skforge. CPUs have none: a trained one gained .3 % over the choices
of the estimate alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from pathlib import Path

import numpy as np

from skforge._container import read_container, write_container
from skforge._typing import Arrays, Float64s
from skforge._version import __version__
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.record import forest_in, forest_out
from skforge.compiler.runtime.module import CompiledModule, compile_forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, InvalidModelError
from skforge.gpu.cost import GpuWork
from skforge.gpu.features import features
from skforge.runtime.records import entry

#: The shipped model, trained on times of a simulation.
SHIPPED_GPU = Path(__file__).with_name("cost_model.skforge")


class CostModel:
    """Predicts the times of GPU schedules without running them.

    Parameters
    ----------
    forest : Forest
        Maps the features to the error of the estimate, in natural logarithms.
    facts : mapping of str to float
        Facts about its training: ``margin`` is the predicted speedup at which a
        schedule is preferred to the default; each architecture with a fact of its name
        ("sm_90") is one that the model was trained for.
    names : iterable of str, optional
        The names of the features it was trained on; by default those of the forest.

    Raises
    ------
    InvalidModelError
        If it was trained on other features than this version of skforge uses: here or
        at the first prediction.
    """

    def __init__(
        self,
        forest: Forest,
        facts: Mapping[str, float] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        self.names = tuple(names) or forest.feature_names or ()
        if forest.n_features != len(self.names):
            raise InvalidModelError(OTHER_FEATURES)
        self.forest = replace(forest, feature_names=self.names)
        self.facts = dict(facts or {})
        self._module: CompiledModule | None = None

    # ------------------------------------------------------------------ files

    @classmethod
    def shipped(cls, target: Target | None = None) -> CostModel | None:
        """Return the shipped model for a target; None if it was not trained for it."""
        if target is None or not target.is_gpu:
            return None
        model = _shipped(SHIPPED_GPU)
        return model if model.knows(target) else None

    def knows(self, target: Target) -> bool:
        """Return whether the model was trained for such targets."""
        return target.is_gpu and target.cpu in self.facts

    @classmethod
    def load(cls, path: str | PathLike[str]) -> CostModel:
        """Read a model from a file: arrays and numbers, all of them checked."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise InvalidModelError(f"{os.fspath(path)} is not a regular file.")
        manifest, arrays = read_container(path)
        forest = forest_in(entry(manifest, "forest", dict), arrays).validate()
        facts = entry(manifest, "facts", dict)
        return cls(forest, {name: float(entry(facts, name, float)) for name in facts})

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a file."""
        arrays: Arrays = {}
        manifest = {"skforge_version": __version__, "kind": "cost model"}
        record = forest_out(self.forest, arrays)
        write_container(
            path, {**manifest, "facts": self.facts, "forest": record}, arrays
        )

    # ------------------------------------------------------------- prediction

    def seconds(self, setting: Setting, schedules: Iterable[Schedule]) -> Float64s:
        """Return the predicted seconds per call for each schedule.

        Parameters
        ----------
        setting : Setting
            Forest, GPU and rows.
        schedules : iterable of Schedule
            Legal schedules; predictions for others are meaningless.

        Raises
        ------
        InvalidInputError
            If the target is no GPU.
        """
        if not setting.target.is_gpu:
            raise InvalidInputError(
                "cost models are for GPUs; on a CPU, leave out the model: the search "
                "begins with the estimate of the default schedules."
            )
        log_row = self.log_row(GpuWork(setting, facts_of(schedules)))
        return np.asarray(np.exp(log_row) * 1e-9 * setting.n_rows)

    def log_row(self, work: GpuWork) -> Float64s:
        """Return the predicted natural logarithm of the nanoseconds per row."""
        if not len(work.estimate):
            return np.zeros(0)
        if self._module is None:
            # One kernel for all: a second takes longer to compile than it would save.
            target = Target.host()
            schedule = walking_schedules(self.forest, target)[128, 2048]
            self._module = compile_forest(self.forest, schedule, target)
        columns = features(work)
        if not columns.keys() >= set(self.names):
            raise InvalidModelError(OTHER_FEATURES)
        matrix = np.column_stack([columns[name] for name in self.names])
        error = self._module.predict_raw(matrix).reshape(-1)
        return np.asarray(np.log(work.estimate) + error)


OTHER_FEATURES = (
    "the cost model was trained on other features than this version of skforge uses; "
    "train it again with benchmarks/gpu/train.py."
)


@lru_cache(maxsize=1)
def _shipped(path: Path) -> CostModel:
    return CostModel.load(path)


__all__ = ["SHIPPED_GPU", "CostModel"]
