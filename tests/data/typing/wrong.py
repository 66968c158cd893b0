"""Mistakes of users that a type checker finds.

Each is excused by its own code: an excuse that mypy finds unused fails the test.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import skforge
import skforge.tuning
from skforge import CompiledForest, Schedule, compile_forest, load_forest
from skforge.modules.compiled import CompiledModule


def names() -> None:
    """No such names."""
    from skforge import Schedules  # type: ignore[attr-defined]

    Schedules()
    skforge.compile()  # type: ignore[attr-defined]
    skforge.tuning.Halving()  # type: ignore[attr-defined]
    Schedule().interleaved("batch")  # type: ignore[attr-defined]
    CompiledForest(None, reduce="fast")  # type: ignore[call-arg]


def arguments(path: str) -> None:
    """Types and values that are not taken."""
    Schedule().tile("batch", "b0", "b1", "64")  # type: ignore[arg-type]
    Schedule().reorder(["b0", "b1"])  # type: ignore[arg-type]
    Schedule().tile("batch", "b0", "b1")  # type: ignore[call-arg]
    forest = load_forest(path, iteration_range=(0, 10.5))  # type: ignore[arg-type]
    compile_forest(forest, reduction="exakt")  # type: ignore[arg-type]
    CompiledForest(path, reduction="sloppy")  # type: ignore[arg-type]
    CompiledForest(path, prefit="no")  # type: ignore[arg-type]
    CompiledForest(path, target=86)  # type: ignore[arg-type]
    CompiledForest(path, tuning=False)  # type: ignore[arg-type]
    CompiledForest(path, n_jobs="all")  # type: ignore[arg-type]
    skforge.tuning.tune(forest, batch_sizes=[8])  # type: ignore[call-arg]
    skforge.save(path, "fast.skforge")  # type: ignore[arg-type]
    skforge.export(3, "folder")  # type: ignore[arg-type]
    skforge.export(forest, "folder", batch_sizes=8)  # type: ignore[arg-type]
    skforge.export(forest, "folder", kind="foo")  # type: ignore[arg-type]
    skforge.load(3)  # type: ignore[arg-type]


def attributes(fast: CompiledForest) -> None:
    """Misspelt methods and attributes, of what is loaded too."""
    loaded = skforge.load("fast.skforge")
    loaded.predict_prob([[0.0]])  # type: ignore[attr-defined]
    loaded.save("fast.skforge")  # type: ignore[attr-defined]
    fast.n_features_in()  # type: ignore[attr-defined]
    fast.fit([[0.0]]).wramup()  # type: ignore[attr-defined]
    fast.warm_up(["a"])  # type: ignore[list-item]


def results(module: CompiledModule) -> None:
    """Taken for what they are not."""
    leaves: NDArray[np.float64] = module.apply([[0.0]])  # type: ignore[assignment]
    module.predict(leaves, 2)  # type: ignore[call-arg]
    fast: Schedule = module.schedules[1]  # type: ignore[index]
    skforge.export(module, "folder").read()  # type: ignore[attr-defined]
    fast.fit()  # type: ignore[attr-defined]
