"""The cost model of GPUs: a boosted forest that predicts the time of a schedule.

It predicts the logarithm of the ratio of a row's time to an estimate, so that its
predictions scale to forests larger than those it was trained on. The forest is stored
as arrays and run by skforge. CPUs have none: a trained one gained .3 % over the choices
of the estimate alone.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._container import plain_array
from skforge.compiler.cost.gpu import Array, GpuWork
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.module import CompiledModule, compile_forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, InvalidModelError, shortened
from skforge.tuning.cost.features import features

#: The shipped model, trained on times of a simulation.
SHIPPED_GPU = Path(__file__).with_name("gpu_cost_model.npz")

#: The stored arrays of a forest; other fields are the same for all models.
STORED = (
    "tree_offset", "predicate", "left", "right", "leaf", "leaf_value", "feature",
    "comparison", "threshold", "missing", "missing_left",
)  # fmt: skip


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
    names : iterable of str
        The names of the features it was trained on.

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
        self.names = tuple(names)
        if forest.n_features != len(self.names):
            raise InvalidModelError(OTHER_FEATURES)
        self.forest = forest
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

    def log_row(self, work: GpuWork) -> Array:
        """Return the predicted natural logarithm of the nanoseconds per row."""
        if not len(work.estimate):
            return np.zeros(0)
        if self._module is None:
            self._module = _compiled(self.forest)
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


def _forest_of(arrays: Mapping[str, Any], n_features: int) -> Forest:
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


__all__ = ["SHIPPED_GPU", "CostModel"]
