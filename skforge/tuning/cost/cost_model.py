"""The cost model: a boosted forest that predicts the time of a schedule.

It predicts the logarithm of the ratio of a row's time to an estimate, so that its
predictions scale to forests larger than those it was trained on. The forest is stored
as arrays and run by skforge.
"""

from __future__ import annotations

import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from skforge._container import plain_array
from skforge.compiler.cost.gpu import Array
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends import load_forest
from skforge.compiler.runtime.module import CompiledModule, compile_forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidModelError, shortened
from skforge.tuning.cost.features import GPU_NAMES, NAMES, Featured, Setting, featurize

#: The shipped model of GPUs, trained on times of a simulation. CPUs have none: one
#: trained by benchmarks/train_cost_model.py gained .3 % over the estimate's choices.
SHIPPED_GPU = Path(__file__).with_name("gpu_cost_model.npz")

#: The stored arrays of a forest; all other fields are the same for every cost model.
STORED = (
    "tree_offset", "predicate", "left", "right", "leaf", "leaf_value", "feature",
    "comparison", "threshold", "missing", "missing_left",
)  # fmt: skip


class CostModel:
    """Predicts the times of schedules without running them.

    Parameters
    ----------
    forest : Forest
        Maps the features to the error of the estimate, in natural logarithms.
    facts : mapping of str to float
        Facts about its training: ``margin`` is the predicted speedup at which a
        schedule is preferred to the default; of a model of GPUs, each architecture with
        a fact of its name ("sm_90") is one that it was trained for.
    names : iterable of str
        The names of the features it was trained on: those of CPUs or of GPUs.

    Raises
    ------
    InvalidModelError
        If it was trained on other features than this version of skforge uses.
    """

    def __init__(
        self,
        forest: Forest,
        facts: Mapping[str, float] | None = None,
        names: Iterable[str] = NAMES,
    ) -> None:
        self.names = tuple(names)
        known = self.names in (tuple(NAMES), GPU_NAMES)
        if not known or forest.n_features != len(self.names):
            raise InvalidModelError(
                "the cost model was trained on other features than this version of "
                "skforge uses; train it again with benchmarks/train_cost_model.py, or "
                "benchmarks/gpu/train.py for GPUs."
            )
        self.forest = forest
        self.facts = dict(facts or {})
        self._module: CompiledModule | None = None

    # ------------------------------------------------------------------ files

    @classmethod
    def shipped(cls, target: Target | None = None) -> CostModel | None:
        """Return the shipped model for a target; None if the package has none.

        Parameters
        ----------
        target : Target, default=None
            A GPU that the model was trained for. CPUs have no model: None.
        """
        if target is None or not target.is_gpu:
            return None
        model = _shipped(SHIPPED_GPU)
        return model if model.knows(target) else None

    def knows(self, target: Target) -> bool:
        """Return whether the model was trained for such targets."""
        if not target.is_gpu:
            return self.names != GPU_NAMES
        return self.names == GPU_NAMES and target.cpu in self.facts

    @classmethod
    def load(cls, path: str | PathLike[str]) -> CostModel:
        """Read a model from a file, which contains only arrays."""
        try:
            arrays = _arrays_of(Path(path))
            named = zip(arrays["fact_names"], arrays["facts"], strict=True)
            facts = {str(name): float(value) for name, value in named}
            names = tuple(map(str, arrays["names"]))
            return cls(_forest_of(arrays, len(names)), facts, names)
        except _DAMAGE as error:
            raise InvalidModelError(
                f"{os.fspath(path)} is not a valid cost model: {shortened(str(error))}"
            ) from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a compressed file."""
        arrays: dict[str, Any] = {n: getattr(self.forest, n) for n in STORED}
        for name in ("left", "right", "predicate", "leaf", "feature"):
            if arrays[name].max(initial=0) < 1 << 15:
                arrays[name] = arrays[name].astype(np.int16)
        arrays["names"] = np.array(self.names)
        arrays["fact_names"] = np.array(list(self.facts))
        arrays["facts"] = np.array(list(self.facts.values()), np.float64)
        np.savez_compressed(path, **arrays)

    # ------------------------------------------------------------- prediction

    def seconds(self, setting: Setting, schedules: Iterable[Schedule]) -> Array:
        """Return the predicted seconds per call for each schedule.

        Parameters
        ----------
        setting : Setting
            Forest, target, rows and threads.
        schedules : iterable of Schedule
            Legal schedules; predictions for others are meaningless.
        """
        featured = featurize(setting, schedules)
        return np.asarray(np.exp(self.log_row(featured)) * 1e-9 * setting.n_rows)

    def log_row(self, featured: Featured) -> Array:
        """Return the predicted natural logarithm of the nanoseconds per row."""
        if not len(featured.matrix):
            return np.zeros(0)
        if self._module is None:
            self._module = _compiled(self.forest)
        error = self._module.predict_raw(featured.matrix).reshape(-1)
        return np.asarray(featured.log_estimate + error)


#: Maximum uncompressed bytes of one array; the shipped ones have 2 MB.
_ARRAY_BYTES = 64 << 20

# Exceptions raised by zipfile, and for arrays of a wrong shape or type.
_DAMAGE = (
    *(OSError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError),
    *(NotImplementedError, OverflowError, RuntimeError, ValueError, TypeError),
)


def _arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file; check each size before decompression."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in (*STORED, "names", "fact_names", "facts"):
            info = archive.getinfo(f"{name}.npy")
            if info.file_size > _ARRAY_BYTES:
                raise ValueError(f"its array {name!r} is too large")
            array = plain_array(archive.read(info))
            if array is None:
                raise ValueError(f"its array {name!r} is damaged")
            arrays[name] = array
    return arrays


@lru_cache(maxsize=1)
def _shipped(path: Path) -> CostModel:
    return CostModel.load(path)


def _compiled(forest: Forest) -> CompiledModule:
    """Compile a model with plain traversal schedules, which compile fastest."""
    target = Target.host()
    table = walking_schedules(forest, target)
    few, many = table[min(table)], table[128, 2048]
    return compile_forest(forest, {(1, 15): few, (16, None): many}, target)


def _forest_of(arrays: Mapping[str, Any], n_features: int = len(NAMES)) -> Forest:
    """Return a validated forest with scalar leaves."""
    n_nodes, n_trees = len(arrays["left"]), len(arrays["tree_offset"]) - 1
    n_tests = len(arrays["feature"])
    return Forest(
        **{name: arrays[name] for name in STORED},
        tree_output=np.zeros(n_trees, np.int32),
        source_node=np.arange(n_nodes, dtype=np.int32),
        cover=np.zeros(0),
        category_offset=np.zeros(n_tests + 1, np.int64),
        category_words=np.zeros(0, np.uint32),
        n_features=n_features,
        base=np.zeros(1),
        source="cost model",
    ).validate()


#: Minimum times to fit a forest; with fewer, only the median error is corrected.
FEWEST_TIMES = 6

_LEARNER: dict[str, Any] = {
    "max_iter": 40, "max_leaf_nodes": 6, "min_samples_leaf": 1, "learning_rate": 0.15,
    "l2_regularization": 1.0, "early_stopping": False, "random_state": 0,
}  # fmt: skip


class Retrained:
    """Predicts times of schedules in one setting with a corrected cost model.

    The times of a few dozen schedules say little about forests in general, but much
    about this one: a small boosted forest learns the model's error for them. Without a
    model (on CPUs, and on other GPUs than it knows), it learns that of the estimate.
    """

    def __init__(self, model: CostModel | None, setting: Setting) -> None:
        self._model, self._setting = model, setting
        self._offset = 0.0
        self._correction: CompiledModule | None = None

    def log_row(self, schedules: Sequence[Schedule]) -> Array:
        """Return the predicted natural logarithm of the nanoseconds per row."""
        featured = featurize(self._setting, schedules)
        log_row = self._without(featured) + self._offset
        if self._correction is not None and len(schedules):
            log_row += self._correction.predict_raw(featured.matrix).reshape(-1)
        return log_row

    def learn(self, schedules: Sequence[Schedule], seconds: Sequence[float]) -> None:
        """Fit the correction to all measurements so far, in seconds per call."""
        if not schedules:
            return
        featured = featurize(self._setting, schedules)
        took = np.log(np.asarray(seconds) * 1e9 / self._setting.n_rows)
        error = took - self._without(featured)
        self._offset = float(np.median(error))
        self._correction = None
        if len(schedules) >= FEWEST_TIMES:
            # Give fast schedules more weight: these must be ranked well.
            weight = np.exp(took.min() - took)
            self._correction = _fitted(featured.matrix, error - self._offset, weight)

    def _without(self, featured: Featured) -> Array:
        if self._model is None:
            return featured.log_estimate
        return self._model.log_row(featured)


def _fitted(features: Array, error: Array, weight: Array) -> CompiledModule:
    """Train a small forest and compile it; scikit-learn would use all threads."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    learner = HistGradientBoostingRegressor(**_LEARNER)
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        warnings.simplefilter("ignore")  # few samples, constant columns
        learner.fit(features, error, weight)
    return _compiled(load_forest(learner))


__all__ = ["SHIPPED_GPU", "CostModel", "Retrained"]
