"""The parameters of a ``CompiledForest`` with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.target import Target
    from skforge.schedule.schedule import Schedule
    from skforge.tuning.tuner import Tuner


@dataclass(eq=False, repr=False)
class Parameters:
    """What ``CompiledForest`` is made with; loaded models have it, too."""

    estimator: Any
    _: KW_ONLY
    prefit: bool | Literal["auto"] = "auto"
    schedule: str | Schedule | Mapping[Any, Any] = "auto"
    target: str | Target = "auto"
    reduction: Reduction = "exact"
    tuning: str | Tuner = "heuristic"
    tuning_budget: float | Literal["deprecated"] | None = "deprecated"
    batch_sizes: ArrayLike | None = None
    gpu_min_rows: int | None = None
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: int | None = None
