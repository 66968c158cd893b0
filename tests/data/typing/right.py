"""A program of a user who checks types strictly: mypy accepts it, and it runs."""

from __future__ import annotations

import gzip
import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor  # type: ignore[import-untyped]

import skforge
from skforge import CompiledForest, Schedule, Target, compile_forest, load_forest
from skforge.forest.forest import Forest
from skforge.modules.compiled import CompiledModule
from skforge.tuning import ScheduleSearch, ScheduleSpace, Tuner, TuningResult, tune

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, _: object) -> object:
        return value


def by_hand(model: Any, rows: NDArray[np.float32]) -> CompiledModule:
    """Compile without an estimator: forest, schedule, target, module."""
    forest = load_forest(model)
    assert_type(forest, Forest)
    schedule = Schedule().tile("batch", "b0", "b1", 64).parallel("b0")
    assert_type(schedule, Schedule)
    assert_type(Schedule.preset("xgboost"), Schedule)
    assert_type(Schedule.from_json(schedule.to_json()), Schedule)
    assert_type(schedule.explain(forest), str)
    module = compile_forest(forest, {(1, None): schedule}, Target.host())
    assert_type(module, CompiledModule)
    assert_type(module.predict_raw(rows, n_jobs=1), NDArray[Any])
    assert_type(module.predict(rows), NDArray[Any])
    assert_type(module.apply(rows), NDArray[np.int32])
    assert_type(module.schedules, dict[tuple[int, int | None], Schedule])
    assert_type(module.inspect("lir", n_rows=1), str)
    return module


def as_estimator(model: Any, rows: NDArray[np.float32]) -> CompiledForest:
    """Compile in scikit-learn's way."""
    fast = CompiledForest(
        model, prefit=True, target="cpu", tuning="off", batch_sizes=[1, 64], n_jobs=2
    )
    assert_type(fast.fit(rows), CompiledForest)
    assert_type(fast.forest_, Forest)
    assert_type(fast.schedule_, dict[tuple[int, int | None], Schedule])
    assert_type(fast.target_, Target)
    assert_type(fast.tuning_result_, TuningResult | None)
    assert_type(fast.compile_time_, float)
    assert_type(fast.predict(rows), NDArray[Any])
    assert_type(fast.inspect("schedule"), str)
    return fast


def of_a_classifier(path: str, rows: NDArray[np.float32]) -> NDArray[Any]:
    """Load a model; its answers are arrays."""
    fast = skforge.load(path)
    assert_type(fast.decision_function(rows), NDArray[Any])
    assert_type(fast.predict_proba(rows, out=None), NDArray[Any])
    assert_type(fast.n_features_in_, int)
    assert_type(fast.compile_time_, float)
    assert_type(fast.get_params(), dict[str, Any])
    assert_type(fast.set_params(n_jobs=1), CompiledForest)
    assert_type(fast.drop_estimator().warm_up([1, 64]), CompiledForest)
    assert_type(fast.counters(), dict[str, dict[str, int]])
    assert_type(fast.score(rows, fast.classes_[[0, 1]]), float)
    print(fast.feature_names_in_, fast.feature_importances_, fast.estimator_.a_)
    print(fast.summary(rows), fast.decision_function(rows), fast.predict_raw(rows))
    return fast.predict_proba(rows)[:, 1]


def searched(forest: Forest) -> TuningResult:
    """Search schedules, within a budget."""
    result = tune(forest, budget=0.2, ranges={(1, None): 8}, n_jobs=1)
    assert_type(result, TuningResult)
    tuner = Tuner("random", ScheduleSpace.cpu(), budget=0.2)
    CompiledForest(forest, tuning=tuner)
    CompiledForest(forest, schedule={(1, None): "xgboost"}, random_state=0)
    ScheduleSearch(forest, strategy="halving", batch_sizes=np.array([1, 8]))
    return result


def files(fast: CompiledForest | CompiledModule | Forest, folder: Path) -> None:
    """Write artifacts and a library."""
    assert_type(skforge.save(fast, folder / "fast.skforge"), None)
    assert_type(skforge.load(str(folder / "fast.skforge")), CompiledForest)
    with gzip.open(folder / "fast.gz", "wb") as zipped:
        skforge.save(fast, zipped)
    skforge.save(fast, buffer := io.BytesIO())
    assert_type(skforge.load(buffer.getvalue()), CompiledForest)
    assert_type(skforge.export(fast, folder / "library", target="cpu"), Path)


def refused(forest: Forest) -> str:
    """Handle errors by their classes."""
    try:
        Schedule().interleave("batch", 8).loop_nest(forest)
    except skforge.exceptions.ScheduleError as error:
        assert_type(error.args, tuple[Any, ...])
        return str(error)
    except (skforge.SkforgeError, OSError):
        pass
    return "legal"


def main() -> int:
    """Do all of it."""
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    model = DecisionTreeRegressor().fit(rows, np.arange(12.0))
    module, fast = by_hand(model, rows), as_estimator(model, rows)
    assert np.array_equal(module.predict(rows), fast.predict(rows))
    assert refused(module.forest) != "legal"
    assert searched(module.forest).trials
    with tempfile.TemporaryDirectory() as folder:
        files(fast, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
