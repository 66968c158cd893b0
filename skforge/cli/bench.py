"""The commands ``bench`` and ``demo``: equal bits, then speed side by side."""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from skforge.cli.data import Rows, load_rows, load_schedule
from skforge.cli.errors import MISMATCH
from skforge.cli.options import (
    DataColumns,
    DataFile,
    ModelFile,
    RunTarget,
    ScheduleOption,
    SecondsOption,
    sizes_of,
)
from skforge.cli.report import (
    Pair,
    check,
    describe,
    duration,
    own_speed,
    show_schedules,
    speed,
)
from skforge.cli.sources import reference_pair, source_pair
from skforge.cli.tune import refuse_own
from skforge.exceptions import InvalidInputError, VerificationError

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest


def bench(
    model_file: ModelFile,
    data: DataFile = None,
    columns: DataColumns = None,
    batch_sizes: Annotated[
        str, typer.Option(help="Rows a call, separated by commas.")
    ] = "1,64,4096",
    schedule: ScheduleOption = None,
    target: RunTarget = "cpu",
    seconds: SecondsOption = 1.0,
) -> None:
    """Compile a model file, prove equal predictions and compare the speed."""
    from skforge import Target, compile_forest, load_forest

    sizes, console = sizes_of(batch_sizes), Console()
    Target.host()  # loads LLVM, which is not compile time
    start = perf_counter()
    refuse_own(model_file)
    forest = load_forest(model_file)
    read = perf_counter() - start
    _check_memory(max(sizes), forest)
    rows = _drawn_rows(forest)
    given = load_rows(data, forest, columns)
    if data is not None and given is not None:
        rows = {f"of {data.name}": given, **rows}
    module = compile_forest(forest, schedule=load_schedule(schedule), target=target)
    compiled = module.compile_all()
    describe(console, model_file.name, forest)
    console.print(f"read in {duration(read)}, compiled in {duration(compiled)}")
    show_schedules(console, module)
    X = next(iter(rows.values()))
    pair = source_pair(console, model_file, module)
    if pair is not None:
        good = check(console, [pair], rows)
        speed(console, [pair], X, sizes, seconds=seconds)
    else:
        good = check(console, [reference_pair(module)], rows)
        own_speed(console, "predict_raw", module.predict_raw, X, sizes, seconds=seconds)
    if not good:
        raise typer.Exit(MISMATCH)


def _check_memory(n_rows: int, forest: Forest) -> None:
    """Raise if two copies of a batch do not fit in this machine's memory."""
    needed = 2 * n_rows * forest.n_features * forest.input_dtype.itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InvalidInputError(
            f"A batch of {n_rows:,} rows needs about {needed / 1e9:,.0f} GB of memory, "
            f"and this machine has {there / 1e9:,.0f} GB; use a smaller batch size."
        )


def demo(seconds: SecondsOption = 1.0) -> None:
    """Train a model, compile it, prove equal predictions and compare the speed."""
    from skforge import CompiledForest, Target, compile_forest

    console, target = Console(), Target.host()
    X, y = _demo_data()
    train, held_out = X[4096:], X[:4096]
    model = _demo_model(console)
    console.print(
        Text(f"training {type(model).__name__} on {len(train):,} generated rows ...")
    )
    start = perf_counter()
    model.fit(train, y[4096:])
    trained = perf_counter() - start

    start = perf_counter()
    fast = CompiledForest(model, tuning="off").fit(train[:1000])
    fitted = perf_counter() - start
    forest = fast.forest_
    describe(console, type(model).__name__, forest)
    console.print(
        f"trained in {duration(trained)}; CompiledForest(model, tuning='off').fit(X), "
        f"which compiles and checks, took {duration(fitted)}",
        soft_wrap=True,
    )
    module = compile_forest(forest, target=target)
    show_schedules(console, module)

    pairs = [
        Pair("predict_proba", fast.predict_proba, "predict_proba", model.predict_proba)
    ]
    if hasattr(model, "get_booster"):
        booster = model.get_booster()
        booster.set_param({"nthread": 1})
        pairs.insert(
            0,
            Pair(
                "predict_raw",
                module.predict_raw,
                "inplace_predict",
                lambda X: booster.inplace_predict(X, predict_type="margin"),
            ),
        )
    labels = Pair("predict", fast.predict, "predict", model.predict)
    rows = {"held out": held_out, **_drawn_rows(forest)}
    good = check(console, [*pairs, labels], rows)
    speed(console, pairs, held_out, [1, 64, 4096], seconds=seconds)
    if not good:
        raise VerificationError("Compiled predictions differ from the model's own.")


def _demo_data() -> tuple[Rows, NDArray[Any]]:
    """Generate rows with noisy labels, ties and missing values, for full trees."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n_samples=24_096,
        n_features=28,
        n_informative=14,
        flip_y=0.1,
        random_state=0,
    )
    X = np.round(X, 2).astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < 0.02] = np.nan
    return X, y


def _demo_model(console: Console) -> Any:
    try:
        import xgboost
    except ImportError:
        from sklearn.ensemble import RandomForestClassifier

        console.print(
            "xgboost is not installed (pip install 'skforge\\[xgboost]'): the model "
            "is a scikit-learn random forest instead.",
            soft_wrap=True,
        )
        return RandomForestClassifier(100, max_depth=8, n_jobs=1, random_state=0)
    # One thread: on a busy machine, several threads wait for each other.
    return xgboost.XGBClassifier(
        n_estimators=100, max_depth=8, n_jobs=1, random_state=0
    )


def _drawn_rows(forest: Forest, n: int = 2000) -> dict[str, Rows]:
    from skforge.compiler.forest.reference import draw_rows

    return {
        "on and around thresholds": draw_rows(forest, n, seed=0),
        "with missing values": draw_rows(forest, n, seed=1, missing=0.1),
    }
