"""The commands ``tune`` and ``plot``, and files that skforge saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skforge.cli.data import load_rows
from skforge.cli.errors import check_output
from skforge.cli.options import DataColumns, DataFile, ModelFile, RunTarget, sizes_of
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.tuning.result import TuningResult


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
    target: RunTarget = "cpu",
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
    from skforge import CompiledForest, load_forest, save
    from skforge.compiler.forest.reference import draw_rows
    from skforge.tuning import Tuner

    sizes = None if batch_sizes is None else sizes_of(batch_sizes)
    refuse_own(model_file)
    if output is not None:
        check_output(output, ".skforge")
    if records is not None:
        check_output(records)
    if n_jobs == 0:
        raise InvalidInputError("--n-jobs is a number of threads, or -1; not 0.")
    forest = load_forest(model_file)
    rows: Any = load_rows(data, forest, columns)
    if rows is None:
        rows = draw_rows(forest, 1024, seed)
    fast = CompiledForest(
        model_file,
        target=target,
        tuning=Tuner(strategy, records=records),
        tuning_budget=budget,
        batch_sizes=sizes,
        n_jobs=n_jobs,
        random_state=seed,
        verbose=verbose,
    ).fit(rows)
    result = fast.tuning_result_
    assert result is not None
    typer.echo(result.summary())
    if output is not None:
        save(fast, output)
        typer.echo(f"saved {output}")


def is_own(path: Path) -> bool:
    """Return whether a file's name ends in ``.skforge``."""
    return path.suffix.lower() == ".skforge"


def refuse_own(path: Path) -> None:
    """Raise for a ``.skforge`` file, because the command needs a source model."""
    if is_own(path):
        raise InvalidInputError(
            f"{path.name} is a file of skforge's own; name the model file it was made "
            "from."
        )


def result_of(path: Path) -> TuningResult:
    """Return the tuning result of a saved model."""
    from skforge import load

    result: TuningResult | None = getattr(load(path), "tuning_result_", None)
    if result is None:
        raise InvalidInputError(
            f"{path.name} has no tuning result: its schedules were not searched. "
            "skforge tune makes such a file."
        )
    return result


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
    if not is_own(model_file):
        raise InvalidInputError(
            f"{model_file.name} is no .skforge file; skforge tune makes one."
        )
    if not output.suffix:
        raise InvalidInputError(f"{output} does not end in .png, .svg or .pdf.")
    check_output(output)
    axes = result_of(model_file).plot(kind)
    try:
        axes.figure.savefig(output)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{output} cannot be written: {error}") from error
