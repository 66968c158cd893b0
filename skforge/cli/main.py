"""The command line: ``skforge demo | bench | tune | inspect | export | plot``.

Exit codes: 0 success; 1 predictions differ from the source's; 2 a bad option, model
file, data file or schedule.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from skforge._version import __version__
from skforge.cli.data import Rows, load_rows, load_schedule
from skforge.cli.errors import MISMATCH, OneLineGroup, reported
from skforge.cli.export import export_file
from skforge.cli.inspect import level_text
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
from skforge.cli.tune import is_own, own_text, plot_file, refuse_own, tune_file
from skforge.exceptions import InvalidInputError, SkforgeError, VerificationError

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest

app = typer.Typer(
    cls=OneLineGroup,
    help="Compile tree ensembles without changing one bit of a prediction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ModelFile = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, readable=True, help="A model file to load."
    ),
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        readable=True,
        help="Rows: .npy, .csv or .parquet; default: drawn around thresholds.",
    ),
]
DataColumns = Annotated[
    str | None, typer.Option(help="Columns of the data to take, such as 0:13.")
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(help="A preset's name, JSON text or a .json file; default: chosen."),
]
SecondsOption = Annotated[
    float, typer.Option(min=0.01, help="Seconds to measure for, a batch size.")
]


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "×" or "µ"
    app(prog_name="skforge")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skforge {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    pass


@app.command()
def demo(seconds: SecondsOption = 1.0) -> None:
    """Train a model, compile it, prove equal predictions and compare the speed."""
    with reported():
        _demo(Console(), seconds)


@app.command()
def bench(
    model_file: ModelFile,
    data: DataFile = None,
    columns: DataColumns = None,
    batch_sizes: Annotated[
        str, typer.Option(help="Rows a call, separated by commas.")
    ] = "1,64,4096",
    schedule: ScheduleOption = None,
    target: Annotated[
        str, typer.Option(help="cpu, cuda, hip, emulated, emulated-source or auto.")
    ] = "cpu",
    seconds: SecondsOption = 1.0,
) -> None:
    """Compile a model file, prove equal predictions and compare the speed."""
    sizes = _sizes(batch_sizes)
    with reported():
        good = _bench(
            Console(), model_file, data, columns, sizes, schedule, target, seconds
        )
    if not good:
        raise typer.Exit(MISMATCH)


@app.command()
def inspect(
    model_file: ModelFile,
    level: Annotated[
        str,
        typer.Option(
            help="schedule, loops, hir, mir, lir, llvm, asm, cuda, ptx; a pass of MIR."
        ),
    ] = "loops",
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows a call, to choose the kernel by; default: many."
        ),
    ] = None,
    schedule: ScheduleOption = None,
    target: Annotated[
        str, typer.Option(help="cpu, x86-64-v3, aarch64, cuda, ...")
    ] = "cpu",
) -> None:
    """Print one level of what a model file compiles to.

    Of a file that skforge saved, "tuning" shows how its schedules were found.
    """
    with reported():
        if is_own(model_file):
            if schedule is not None or target != "cpu":
                raise InvalidInputError(
                    f"{model_file.name} has its schedules and its target; inspect the "
                    "model it was made from with --schedule or --target."
                )
            typer.echo(own_text(model_file, level, rows))
            return
        from skforge import Target, load_forest

        machine = Target.parse(target)
        given = load_schedule(schedule)
        try:
            text = level_text(load_forest(model_file), level, machine, given, rows)
        except ValueError as error:
            if isinstance(error, SkforgeError):
                raise
            raise typer.BadParameter(str(error), param_hint="--level") from error
        typer.echo(text)


@app.command()
def tune(
    model_file: ModelFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the tuned model goes: a .skforge."),
    ] = None,
    data: DataFile = None,
    columns: DataColumns = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Rows a call, separated by commas.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="heuristic, learned, exhaustive, random or halving.")
    ] = "heuristic",
    target: Annotated[
        str, typer.Option(help="cpu, cuda, hip, emulated, emulated-source or auto.")
    ] = "cpu",
    budget: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds; default: a few.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Where results are kept and looked up.")
    ] = None,
    n_jobs: Annotated[int, typer.Option(help="Threads of one call; -1: all.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of all chance.")] = 0,
    verbose: Annotated[
        int, typer.Option(min=0, help="0: nothing, 1: progress, 2: every candidate.")
    ] = 1,
) -> None:
    """Search the fastest schedules of a model file on this machine."""
    sizes = None if batch_sizes is None else _sizes(batch_sizes)
    with reported():
        tune_file(
            Console(),
            model_file,
            output,
            data,
            columns,
            sizes,
            strategy,
            target,
            budget,
            records,
            n_jobs,
            seed,
            verbose,
        )


@app.command()
def export(
    model_file: ModelFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    kind: Annotated[str, typer.Option(help="object, shared, c or wheel.")] = "object",
    target: Annotated[
        str,
        typer.Option(help="cpu, x86-64 (v2 to v4), x86-64-v3, aarch64; or a list."),
    ] = "cpu",
    name: Annotated[
        str | None, typer.Option(help="Prefix of all functions; default: the folder's.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Rows a call, to leave out other kernels.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="With a function that finds leaves.")
    ] = False,
    package_version: Annotated[
        str | None, typer.Option(help="Version of a wheel; default: 1.0.0.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
) -> None:
    """Write a model file as a C library that needs no Python."""
    sizes = None if batch_sizes is None else _sizes(batch_sizes)
    with reported():
        export_file(
            Console(),
            model_file,
            output,
            kind,
            target.split(","),
            name=name,
            batch_sizes=sizes,
            apply=apply,
            version=package_version,
            overwrite=overwrite,
        )


@app.command()
def plot(
    model_file: ModelFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="An image: .png, .svg or .pdf.")
    ],
    kind: Annotated[
        str, typer.Option(help="distribution, slowdown or sensitivity.")
    ] = "distribution",
) -> None:
    """Draw how the schedules of a tuned .skforge file were found."""
    with reported():
        plot_file(model_file, kind, output)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a list of positive numbers such as 1,64,4096.",
            param_hint="--batch-sizes",
        )
    return sizes


def _bench(
    console: Console,
    model_file: Path,
    data: Path | None,
    columns: str | None,
    sizes: list[int],
    schedule: str | None,
    target: str,
    seconds: float,
) -> bool:
    from skforge import Target, compile_forest, load_forest

    Target.host()  # loads LLVM, which is not compile time
    start = perf_counter()
    refuse_own(model_file)
    forest = load_forest(model_file)
    read = perf_counter() - start
    _check_memory(max(sizes), forest)
    rows = _drawn_rows(forest)
    if data is None and columns is not None:
        raise InvalidInputError(
            "--columns chooses columns of --data, which is missing."
        )
    if data is not None:
        rows = {f"of {data.name}": load_rows(data, forest, columns), **rows}
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
        return good
    good = check(console, [reference_pair(module)], rows)
    own_speed(console, "predict_raw", module.predict_raw, X, sizes, seconds=seconds)
    return good


def _check_memory(n_rows: int, forest: Forest) -> None:
    """Refuse a batch that this machine cannot hold twice."""
    needed = 2 * n_rows * forest.n_features * forest.input_dtype.itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InvalidInputError(
            f"A batch of {n_rows:,} rows needs about {needed / 1e9:,.0f} GB of memory, "
            f"and this machine has {there / 1e9:,.0f} GB; use a smaller batch size."
        )


def _demo(console: Console, seconds: float) -> None:
    from skforge import CompiledForest, Target, compile_forest

    target = Target.host()  # loads LLVM, which is not compile time
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
    """Generate rows that full trees grow on: noisy labels, ties and missing values."""
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
    # One thread: two that share a busy machine wait for each other.
    return xgboost.XGBClassifier(
        n_estimators=100, max_depth=8, n_jobs=1, random_state=0
    )


def _drawn_rows(forest: Forest, n: int = 2000) -> dict[str, Rows]:
    from skforge.compiler.forest.reference import draw_rows

    return {
        "on and around thresholds": draw_rows(forest, n, seed=0),
        "with missing values": draw_rows(forest, n, seed=1, missing=0.1),
    }
