"""Measure and draw one figure of SilvanForge's evaluation, by its number.

    python -m benchmarks.paper fig5 --quick

writes ``fig5.png`` into the current folder. Figures 2, 5, 11 and 12 are measured on
this CPU, Figures 6 to 9 on a GPU. What was measured is kept: the same figure again is
drawn at once, and without ``--quick`` only the schedules that lack are timed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tuning
import tuning_plots
import typer
from plot import save

from skforge.tuning import ScheduleSpace

#: What ``--quick`` measures: two small forests, one schedule of so many.
FEW = ("xgboost-50x10x28", "lightgbm-40x31x28x5")
STEP = 12

#: Figures of all schedules of a space.
WHOLE: dict[str, Callable[..., Any]] = {
    "fig2": tuning_plots.sensitivity,
    "fig5": tuning_plots.distribution,
    "fig12": tuning_plots.hardware,
}
SEARCHES = "fig11"
#: Figures of GPUs: what measures them, and what it is told to be quick.
GPU: dict[str, tuple[str, ...]] = {
    "fig6": ("benchmarks.gpu", "--quick"),
    "fig7": ("benchmarks.gpu", "--quick"),
    "fig8": ("benchmarks.gpu.random_models", "--number=16"),
    "fig9": ("benchmarks.gpu.random_models", "--number=16"),
}
FIGURES = tuple(sorted((*WHOLE, SEARCHES, *GPU), key=lambda name: int(name[3:])))


class Thinned:
    """A space of schedules of which a loop sees a few, spread over all."""

    def __init__(self, space: ScheduleSpace, step: int) -> None:
        self._space, self._step = space, step

    def __iter__(self) -> Iterator[Any]:
        return islice(self._space, 0, None, self._step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)


def main(
    figure: Annotated[str, typer.Argument(help=", ".join(FIGURES))],
    quick: Annotated[
        bool, typer.Option(help="Two forests and a twelfth of the schedules.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder.")] = Path(),
) -> None:
    """Measure what the figure needs, and draw it."""
    if figure not in FIGURES:
        raise typer.BadParameter(f"{figure!r} is none of {', '.join(FIGURES)}")
    output.mkdir(parents=True, exist_ok=True)
    if figure in GPU:
        if find_spec("cupy") is None:
            raise typer.BadParameter(f"{figure} needs a GPU and CuPy; see docs/gpu.md")
        module, *few = GPU[figure]
        command = [sys.executable, "-m", module, "--output", str(output)]
        raise typer.Exit(subprocess.call(command + few * quick))
    file = output / f"{figure}.png"
    times, rows = measured(figure, quick)
    note = f"; a {STEP}th of the space" if quick else ""
    if figure == SEARCHES:
        tuning.draw_searches(rows, file, f"Searches{note}")
    else:
        drawn = WHOLE[figure](tuning.wholes(times), tuning.BATCHES)
        drawn.suptitle(f"{drawn.get_suptitle()}{note}")
        save(drawn, file, dpi=120)
    print(f"drew {file}")


def measured(figure: str, quick: bool) -> tuple[dict[Any, Any], tuning.Rows]:
    space = ScheduleSpace.cpu(threads=False)
    models = FEW if quick else tuning.MODELS
    if quick and figure == "fig12":  # which is about two machines
        models = tuple(f"{name}{at}" for name in FEW for at in ("", "@v3"))
    times: dict[Any, Any] = {}
    rows: tuning.Rows = []
    for spec in models:
        name, machine, target = tuning.recorded(spec)
        some: Any = Thinned(space, STEP) if quick else space
        schedules, _ = tuning.record(machine, some, target)
        print(f"{spec}: {schedules} schedules", flush=True)
        times[name, machine.label] = [machine.times(n) for n in tuning.BATCHES]
        if figure == SEARCHES:
            if quick:  # searches time what the thinned space lacks: know it before
                [*tuning.compare(machine, space, target, budget=4.0)]
            found = tuning.compare(machine, space, target, budget=4.0)
            rows += [{"model": name, "target": machine.label, **one} for one in found]
    return times, rows


if __name__ == "__main__":
    typer.run(main)
