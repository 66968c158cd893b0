"""The commands ``bench`` and ``demo``: speed side by side, then equal bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import typer

from skforge._typing import Array
from skforge.cli import options, report
from skforge.cli.data import check_columns, load_rows
from skforge.cli.errors import MISMATCH, naming
from skforge.cli.models import drawable, fitted, forest_of, live_model, open_model
from skforge.cli.report import Pair, check, describe, show_schedules, speed
from skforge.cli.screen import say, screen
from skforge.cli.tables import name_of
from skforge.exceptions import InvalidInputError, VerificationError, duration
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows
from skforge.frontends.base import is_a, is_compiled
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.modules.compiled import CompiledModule


def estimator_pairs(fast: Any) -> list[Pair]:
    serial = fast._compiled().source._serial()
    return [
        Pair(name, getattr(fast, name), name, getattr(serial, name))
        for name in ("predict_proba", "predict")
        if hasattr(fast, name) and hasattr(serial, name)
    ]


def source_pairs(model_file: Path, model: Any, module: CompiledModule) -> list[Pair]:
    """Return the compiled and the source's predictor, or print why there is no pair."""
    if is_a(model, "xgboost.core.Booster"):
        return [booster_pair(model, module.predict_raw)]
    if is_a(model, "lightgbm.basic.Booster"):
        return [_lightgbm(model, module)]
    library, pair_of = _LIBRARIES.get(module.forest.source, ("", None))
    suffix = model_file.suffix.lower()
    if pair_of is None or suffix not in _SUFFIXES:
        return []
    instead = ": bits are compared with skforge's reference walk."
    try:
        if (library, suffix) != ("catboost", ".json"):
            return [pair_of(model_file, module)]
        why = "reads the numbers of JSON files with other last bits" + instead
    except ImportError:
        why = "is not installed" + instead
    except Exception as error:  # noqa: BLE001 - each library has its own errors
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        why = f"cannot read the file: {said}"
    say(f"{library} {why}")
    return []


def _one_axis(raw: Array) -> Array:
    return raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw


def _xgboost(model_file: Path, module: CompiledModule) -> Pair:
    import xgboost

    with xgboost.config_context(verbosity=0):  # old files cause a warning
        booster = xgboost.Booster(model_file=str(model_file))
    return booster_pair(booster, module.predict_raw)


def booster_pair(booster: Any, compiled: report.Predict) -> Pair:
    booster.set_param({"nthread": 1})
    rounds = (0, 0)  # all
    # XGBoost's scikit-learn wrapper predicts with the rounds up to the best iteration.
    if booster.attr("scikit_learn") is not None:
        rounds = (0, int(booster.attr("best_iteration") or -1) + 1)

    margin = partial(
        booster.inplace_predict, predict_type="margin", iteration_range=rounds
    )
    return Pair("predict_raw", compiled, "inplace_predict", margin)


def _lightgbm(booster: Any, module: CompiledModule) -> Pair:
    if isinstance(booster, Path):
        import lightgbm

        booster = lightgbm.Booster(model_file=str(booster))
    predict = partial(booster.predict, raw_score=True, num_threads=1)
    return Pair("predict_raw", module.predict_raw, "Booster.predict", predict)


def _catboost(model_file: Path, module: CompiledModule) -> Pair:
    import catboost

    model = catboost.CatBoost().load_model(str(model_file))  # predicts raw scores
    predict = partial(model.predict, thread_count=1)
    return Pair("predict_raw", module.predict_raw, "CatBoost.predict", predict)


def _onnxruntime(model_file: Path, module: CompiledModule) -> Pair:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model_file), options)
    feeds, wanted = session.get_inputs(), session.get_outputs()[-1].name
    if len(feeds) != 1:
        raise ValueError(f"it has {len(feeds)} inputs, and rows are one array")
    whole = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}.get(feeds[0].type)

    def given(X: Array) -> Array:
        return X if whole is None else X.astype(whole)

    # Compare scores after the post transform; ONNX Runtime returns no others.
    return Pair(
        "predict",
        lambda X: _one_axis(module.predict(given(X))),
        "onnxruntime",
        lambda X: _one_axis(session.run([wanted], {feeds[0].name: given(X)})[0]),
    )


_LIBRARIES: dict[str, tuple[str, Callable[[Path, CompiledModule], Pair]]] = {
    "xgboost": ("xgboost", _xgboost),
    "lightgbm": ("lightgbm", _lightgbm),
    "catboost": ("catboost", _catboost),
    "onnx": ("onnxruntime", _onnxruntime),
}
_SUFFIXES = (".json", ".ubj", ".txt", ".cbm", ".onnx")  # of files of libraries


def bench(
    model_file: options.ModelFile,
    data: options.DataFile = None,
    columns: options.DataColumns = None,
    batch_sizes: str = "1,64,4096",
    schedule: options.ScheduleOption = None,
    target: options.RunTarget = "cpu",
    seconds: options.SecondsOption = 1.0,
    verbose: options.Verbose = False,
) -> None:
    """Compile a model, and compare its speed and every bit with its source.

    :param batch_sizes: Batch sizes to measure, separated by commas.
    """
    from skforge import Target
    from skforge.sources.files import ForestSource

    sizes, console = options.sizes_of(batch_sizes), screen()
    chosen = options.load_schedule(schedule)
    check_columns(data, columns)
    Target.host()  # loads LLVM, which is not compile time
    start = perf_counter()
    model = open_model(model_file)
    read = perf_counter() - start
    is_live, rows = live_model(model) is not None, {}
    with naming(name_of(data or model_file)):
        if data is not None:
            rows[f"of {name_of(data)}"] = load_rows(data, model, columns)
        if is_live:
            job = _of_estimator(model_file, model, rows, chosen, target)
            pairs = estimator_pairs(job.fast)
        else:
            job = _of_forest(model_file, model, rows, chosen, target)
            pairs = source_pairs(model_file, model, job.module)
        _check_memory(max(sizes), job.forest)
        describe(console, model_file.name, job.forest)
        X = next(iter(job.rows.values()))
        # without a library, skforge's slow walk is compared, and not measured
        raw, walk = job.module.predict_raw, ForestSource(None, job.forest).raw_of
        pairs = pairs or [Pair("predict_raw", raw, "reference", walk, is_timed=False)]
        speed(console, pairs[:1], X, sizes, seconds=seconds)
        good = check(console, pairs, job.rows)
        took = f"read in {duration(read)}, compiled in {duration(job.seconds)}"
        say(f"\n{took}")
        if verbose:
            show_schedules(console, job.module)
    if not good:
        raise typer.Exit(MISMATCH)


class _BenchJob(NamedTuple):
    forest: Forest
    module: CompiledModule
    seconds: float
    rows: dict[str, Any]
    fast: Any = None  # a CompiledForest


def _of_forest(
    path: Path,
    model: Any,
    given: dict[str, Any],
    schedule: Schedule | None,
    target: str,
) -> _BenchJob:
    from skforge import compile_forest

    forest, schedules = forest_of(model), cast("Any", schedule)
    if forest.hashed is None:
        given = {**given, **_drawn_rows(forest)}
    elif not given:
        drawable(path, model)  # raises: no categories can be drawn
    stored = getattr(model, "schedule_", getattr(model, "schedules", None))
    if stored and target == "cpu" and {s.kind for s in stored.values()} == {"cpu"}:
        schedules = schedule or dict(stored)
    module = compile_forest(forest, schedules, target)
    seconds = module.compile_all()
    return _BenchJob(forest, module, seconds, given)


def _of_estimator(
    path: Path,
    model: Any,
    given: dict[str, Any],
    schedule: Schedule | None,
    target: str,
) -> _BenchJob:
    from skforge import Target

    rows = given or _drawn_rows(drawable(path, model), 1000, missing=False)
    how: dict[str, Any] = {}
    if schedule is not None or not is_compiled(model):
        how["schedule"] = schedule or "auto"
    start = perf_counter()
    if how or Target.parse(target).kind != model.target_.kind:
        how |= {"target": target, "tuning": "off"}
    fast = fitted(model, next(iter(rows.values())), **how)
    module = fast._compiled().module
    module.compile_all()
    seconds = perf_counter() - start
    if not given:
        gaps = fast.__sklearn_tags__().input_tags.allow_nan
        rows = _drawn_rows(fast.forest_, missing=gaps)
    return _BenchJob(fast.forest_, module, seconds, rows, fast)


def _check_memory(n_rows: int, forest: Forest) -> None:
    needed = 2 * n_rows * forest.n_features * forest.input_dtype.itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InvalidInputError(
            f"A batch of {n_rows:,} rows needs about {needed / 1e9:,.0f} GB of memory, "
            f"and this machine has {there / 1e9:,.0f} GB; use a smaller batch size."
        )


def demo(
    seconds: options.SecondsOption = 1.0, verbose: options.Verbose = False
) -> None:
    """Train a model, compile it, and compare the speed and every bit."""
    from skforge import CompiledForest, Target

    console = screen()
    Target.host()  # loads LLVM, which is not compile time
    X, y = _demo_data()
    train, held_out = X[4096:], X[:4096]
    model = _demo_model()
    say(f"training {type(model).__name__} on {len(train):,} generated rows ...")
    start = perf_counter()
    model.fit(train, y[4096:])
    trained = perf_counter() - start

    start = perf_counter()
    fast = CompiledForest(model, tuning="off").fit(train[:1000])
    fitted = perf_counter() - start
    forest = fast.forest_
    describe(console, type(model).__name__, forest)
    pairs = estimator_pairs(fast)
    if hasattr(model, "get_booster"):
        fast.predict_raw(
            held_out[:1]
        )  # compiles its entry; fit has compiled the others
        pairs = [booster_pair(model.get_booster(), fast.predict_raw), *pairs]
    rows = {"held out": held_out, **_drawn_rows(forest)}
    speed(console, pairs[:-1], held_out, [1, 64, 4096], seconds=seconds)
    good = check(console, pairs, rows)
    say(
        f"\ntrained in {duration(trained)}; "
        "CompiledForest(model, tuning='off').fit(X), "
        f"which compiles and checks, took {duration(fitted)}"
    )
    if verbose:
        show_schedules(console, fast._compiled().module)
    if not good:
        raise VerificationError("Compiled predictions differ from the model's own.")


def _demo_data() -> tuple[report.RowArray, Array]:
    """Generate rows with noisy labels, ties and missing values, for full trees."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n_samples=24_096, n_features=28, n_informative=14, flip_y=0.1, random_state=0
    )
    X = np.round(X, 2).astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < 0.02] = np.nan
    return X, y


def _demo_model() -> Any:
    try:
        import xgboost
    except ImportError:
        from sklearn.ensemble import RandomForestClassifier

        say(
            "xgboost is not installed (pip install xgboost): the model "
            "is a scikit-learn random forest instead."
        )
        return RandomForestClassifier(100, max_depth=8, n_jobs=1, random_state=0)
    # One thread: on a busy machine, several threads wait for each other.
    return xgboost.XGBClassifier(
        n_estimators=100, max_depth=8, n_jobs=1, random_state=0
    )


def _drawn_rows(
    forest: Forest, n: int = 2000, missing: bool = True
) -> dict[str, report.RowArray]:
    rows = {"on and around thresholds": draw_rows(forest, n, seed=0)}
    if missing:
        rows["with missing values"] = draw_rows(forest, n, seed=1, missing=0.1)
    return rows
