"""What ``tune`` and ``plot`` do, and ``inspect`` with files of skforge's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from skforge.cli.data import load_rows
from skforge.cli.errors import check_output
from skforge.exceptions import InvalidInputError

if TYPE_CHECKING:
    from skforge.tuning.result import TuningResult

#: What ``inspect`` shows of a tuned model besides the levels of the compilation.
TUNING = "tuning"


def tune_file(
    console: Console,
    model_file: Path,
    output: Path | None,
    data: Path | None,
    columns: str | None,
    batch_sizes: list[int] | None,
    strategy: str,
    target: str,
    budget: float | None,
    records: Path | None,
    n_jobs: int,
    seed: int,
    verbose: int,
) -> None:
    """Search the schedules of a model file, print the result and save the model."""
    from skforge import CompiledForest, load_forest, save
    from skforge.compiler.forest.reference import draw_rows
    from skforge.tuning import Tuner

    refuse_own(model_file)
    if output is not None:
        check_output(output, ".skforge")
    if records is not None:
        check_output(records)
    if n_jobs == 0:
        raise InvalidInputError("--n-jobs is a number of threads, or -1; not 0.")
    if data is None and columns is not None:
        raise InvalidInputError(
            "--columns chooses columns of --data, which is missing."
        )
    forest = load_forest(model_file)
    if data is None:
        rows: Any = draw_rows(forest, 1024, seed)
    else:
        rows = load_rows(data, forest, columns)
    fast = CompiledForest(
        model_file,
        target=target,
        tuning=Tuner(strategy, records=records),
        tuning_budget=budget,
        batch_sizes=batch_sizes,
        n_jobs=n_jobs,
        random_state=seed,
        verbose=verbose,
    ).fit(rows)
    result = fast.tuning_result_
    assert result is not None
    console.print(Text(result.summary()), soft_wrap=True)
    if output is not None:
        save(fast, output)
        console.print(Text(f"saved {output}"), soft_wrap=True)


def is_own(path: Path) -> bool:
    """Tell whether a file is one that ``skforge.save`` wrote, by its name."""
    return path.suffix.lower() == ".skforge"


def refuse_own(path: Path) -> None:
    """Refuse a file that ``skforge.save`` wrote, where a source's is needed."""
    if is_own(path):
        raise InvalidInputError(
            f"{path.name} is a file of skforge's own; name the model file it was made "
            "from."
        )


def own_text(path: Path, level: str, n_rows: int | None) -> str:
    """Return a level of a saved model, or how its schedules were found."""
    if level == TUNING:
        return result_of(path).summary()
    from skforge import load

    model = load(path)
    if not hasattr(model, "inspect"):
        raise InvalidInputError(f"{path.name} holds a forest that was never compiled.")
    return str(model.inspect(level, n_rows=n_rows)).rstrip("\n")


def result_of(path: Path) -> TuningResult:
    """Return the tuning result that a saved model keeps."""
    from skforge import load

    result: TuningResult | None = getattr(load(path), "tuning_result_", None)
    if result is None:
        raise InvalidInputError(
            f"{path.name} has no tuning result: its schedules were not searched. "
            "skforge tune makes such a file."
        )
    return result


def plot_file(path: Path, kind: str, output: Path) -> None:
    """Draw the tuning result of a saved model to an image file."""
    if not is_own(path):
        raise InvalidInputError(
            f"{path.name} is no .skforge file; skforge tune makes one."
        )
    if not output.suffix:
        raise InvalidInputError(f"{output} does not end in .png, .svg or .pdf.")
    check_output(output)
    axes = result_of(path).plot(kind)
    try:
        axes.figure.savefig(output)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{output} cannot be written: {error}") from error
