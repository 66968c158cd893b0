"""Who predicts on a GPU. A loader takes a model, options and a clock.

What a loader returns is called with rows on the device, and with NumPy rows; either may
be None. Packages are imported inside: a missing one is a reason, not an end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from systems import NotForModelError, source_of, xgboost_booster

from benchmarks.gpu.devices import Clock

Predict = Callable[[Any], Any]
Model = dict[str, Any]
Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GpuSystem:
    """What predicts a loaded model."""

    answer: str  # as of systems.System
    device: Predict | None  # rows on the device to an answer there; it need not wait
    host: Predict | None  # NumPy rows to a NumPy answer, copies included
    rows: Predict = lambda rows: rows  # on the device: what ``device`` takes; untimed
    #: Is told the rows of the batches that follow, before they are timed.
    tune: Callable[[int], None] | None = None


# ------------------------------------------------------------ skforge


def skforge(model: Model, options: Options, clock: Clock) -> GpuSystem:
    """Compile a forest: default schedules, a design's, or for the CPU."""
    from benchmarks.gpu.designs import designs
    from skforge import compile_forest, load_forest

    forest = load_forest(source_of(model))
    wanted, schedule = options.get("design"), None
    if wanted is not None:
        schedule = next((d.schedule for d in designs(forest) if d.name == wanted), None)
        if schedule is None:
            raise NotForModelError("no such design for trees of this depth")
    module = compile_forest(
        forest, schedule, options["target"], options.get("reduction", "exact")
    )
    jobs = options.get("threads")
    if options["target"] == "cpu":
        return GpuSystem("raw", None, lambda X: module.predict_raw(X, n_jobs=jobs))
    return GpuSystem("raw", module.predict_raw, module.predict_raw)


# ------------------------------------------------------------ peers


def nvforest(model: Model, options: Options, clock: Clock) -> GpuSystem:
    """Load nvForest, which chooses layout and chunk for each batch size."""
    import nvforest as library

    precision = "double" if model["facts"]["dtype"] == "float64" else None
    trees = _treelite(model)
    loaded = library.load_from_treelite_model(trees, device="gpu", precision=precision)
    return _of_forest(loaded, model, clock)


def cuml(model: Model, options: Options, clock: Clock) -> GpuSystem:
    """Load cuML's FIL, nvForest's name before 2026."""
    from cuml.fil import ForestInference

    loaded = ForestInference(
        treelite_model=_treelite(model),
        is_classifier=model["facts"]["outputs"] > 1,
        precision="double" if model["facts"]["dtype"] == "float64" else "single",
    )
    return _of_forest(loaded, model, clock)


def _of_forest(loaded: Any, model: Model, clock: Clock) -> GpuSystem:
    """Return calls of a forest that is tuned in place, or gives a tuned one."""
    now = [loaded]
    name = "predict_proba" if model["facts"]["outputs"] > 1 else "predict"

    def tune(rows: int) -> None:
        now[0] = loaded.optimize(batch_size=rows) or loaded

    def predict(X: Any) -> Any:
        return getattr(now[0], name)(X)

    return GpuSystem("raw", predict, lambda X: clock.get(predict(X)), tune=tune)


def _treelite(model: Model) -> Any:
    """Return a model whose answers are its sums, whatever its objective."""
    import peers

    trees = peers.treelite_model(model)
    peers.as_sum(trees, model["facts"]["outputs"])
    return trees


def xgboost(model: Model, options: Options, clock: Clock) -> GpuSystem:
    booster = _booster_on_gpu(model, clock)

    def predict(X: Any) -> Any:
        return booster.inplace_predict(X, predict_type="margin")

    def host(X: Any) -> Any:
        # NumPy rows would be predicted on the CPU: a copy first, as its users do.
        return clock.get(predict(clock.put(X)))

    return GpuSystem("raw", predict, host)


def _booster_on_gpu(model: Model, clock: Clock) -> Any:
    if model["kind"] != "xgboost":
        raise NotForModelError("reads XGBoost models only")
    import xgboost as library

    _needs_gpu(clock)
    if not library.build_info()["USE_CUDA"]:
        raise NotForModelError("this build of XGBoost has no CUDA")
    booster = xgboost_booster(model)
    booster.set_param({"device": "cuda"})
    return booster


def _needs_gpu(clock: Clock) -> None:
    """Refuse what would silently run on the CPU."""
    if clock.name == Clock.name:
        raise NotForModelError("needs a GPU")


def xgboost_matrix(model: Model, options: Options, clock: Clock) -> GpuSystem:
    import xgboost as library

    booster = _booster_on_gpu(model, clock)
    names, types = booster.feature_names, booster.feature_types

    def predict(X: Any) -> Any:
        matrix = library.DMatrix(
            X, feature_names=names, feature_types=types, enable_categorical=True
        )
        return booster.predict(matrix, output_margin=True)

    return GpuSystem("raw", None, predict)


def hummingbird(model: Model, options: Options, clock: Clock) -> GpuSystem:
    _needs_gpu(clock)
    return _hummingbird(model, "torch.jit")


def hummingbird_eager(model: Model, options: Options, clock: Clock) -> GpuSystem:
    _needs_gpu(clock)
    return _hummingbird(model, "torch")


def _hummingbird(model: Model, backend: str) -> GpuSystem:
    import peers
    import torch

    converted, method = peers.hummingbird_model(model, backend, device="cuda")
    inside = converted.model

    def device(X: Any) -> Any:
        with torch.inference_mode():
            found = inside(X)
        return found[-1] if isinstance(found, tuple) else found

    host = getattr(converted, method)
    return GpuSystem("value", device, host, rows=torch.as_tensor)
