"""The commands ``tune`` and ``plot``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skforge.cli import options
from skforge.cli.data import all_rows, check_columns
from skforge.cli.errors import check_output, naming
from skforge.cli.models import drawable, fitted, open_model
from skforge.cli.screen import say
from skforge.cli.tables import name_of
from skforge.exceptions import InvalidInputError, check_choice
from skforge.forest.reference import draw_rows
from skforge.sources.row_spec import row_spec

if TYPE_CHECKING:
    from skforge.tuning.result import TuningResult


def tune(
    model_file: options.ModelFile,
    output: options.OutputOption[Path | None] = None,
    data: options.DataFile = None,
    columns: options.DataColumns = None,
    batch_sizes: str | None = None,
    strategy: str = "heuristic",
    target: options.RunTarget = "cpu",
    budget: Annotated[float | None, typer.Option(min=0.001)] = None,
    records: Path | None = None,
    n_jobs: int = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    verbose: Annotated[int, typer.Option(min=0, metavar="LEVEL")] = 1,
) -> None:
    """Search the fastest schedules for a model on this machine.

    :param output: The .skforge file to save the tuned model to.
    :param batch_sizes: Batch sizes to tune for, separated by commas.
    :param strategy: How to search: heuristic, learned, exhaustive, random or halving.
    :param budget: Seconds to search. Default: 4, or 10 on a GPU.
    :param records: A file that keeps all results, so none is measured twice.
    :param n_jobs: Threads of one call. -1 uses all cores.
    :param seed: Seed of everything random.
    :param verbose: What to show: 0 the result, 1 also progress, 2 also every candidate
        and the schedules.
    """
    from skforge import save
    from skforge.tuning import Tuner
    from skforge.tuning.result import report
    from skforge.tuning.tuner import STRATEGIES

    check_choice("--strategy", strategy, STRATEGIES)

    sizes = None if batch_sizes is None else options.sizes_of(batch_sizes)
    if output is not None:
        check_output(output, ".skforge")
    if records is not None:
        check_output(records)
        if records.is_file() and records.read_bytes()[:1] not in (b"", b"{"):
            raise InvalidInputError(f"{records} is not a file of tuning records.")
    if n_jobs == 0:
        raise InvalidInputError("--n-jobs is a number of threads, or -1; not 0.")
    check_columns(data, columns)
    model = open_model(model_file)
    if data is None:
        rows: Any = draw_rows(drawable(model_file, model), 1024, seed)
    else:
        rows = all_rows(data, row_spec(model), columns)
    with naming(name_of(data or model_file)):
        fast = fitted(
            model,
            rows,
            schedule="auto",
            target=target,
            tuning=Tuner(strategy, budget=budget, records=records),
            batch_sizes=sizes,
            n_jobs=n_jobs,
            random_state=seed,
            verbose=verbose,
        )
    result = fast.tuning_result_
    assert result is not None
    told = verbose > 0  # notes, on standard error
    say(report(result, schedules=verbose > 1, notes=not told))
    if output is None:
        say("Nothing is saved; -o tuned.skforge saves the model with these schedules.")
        return
    save(fast, output)
    say(f'saved {output}: skforge.load("{output}") returns the model')
    say(f"its schedules: skforge inspect {output} --level tuning")


def result_of(path: Path, model: Any) -> TuningResult:
    result: TuningResult | None = getattr(model, "tuning_result_", None)
    if result is None:
        raise InvalidInputError(
            f"{path.name} has no tuning result: its schedules were not searched. "
            "skforge tune makes a file that has one."
        )
    return result


def plot(
    model_file: options.ModelFile,
    output: options.OutputOption[Path],
    kind: str = "distribution",
) -> None:
    """Draw how the schedules of a tuned model were found.

    :param output: The image to write: .png, .svg or .pdf.
    :param kind: What to draw: distribution, slowdown or sensitivity.
    """
    if not output.suffix:
        raise InvalidInputError(f"{output} does not end in .png, .svg or .pdf.")
    check_output(output)
    axes = result_of(model_file, open_model(model_file)).plot(kind)
    try:
        axes.figure.savefig(output)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{output} cannot be written: {error}") from error
