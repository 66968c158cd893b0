"""Calls from C for latency.py: the programs of export_systems.py time each call."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case
from conditions import Limits
from export_systems import SYSTEMS, Built, answers, run
from latency_calls import System
from numpy.typing import NDArray
from systems import NotForModelError

from skforge.cli.report import describe_difference

#: The model's own library comes first: others are compared with it.
NAMES = {
    "the source's C interface": "C: the source's interface",
    "skforge, this CPU": "C: skforge.export",
    "tl2cgen, gcc -O3": "C: tl2cgen",
    "lleaves": "C: lleaves",
}
CHECKED_ROWS = 1024
MOST_LEAVES = 50_000  # gcc takes more than a minute for more


def from_c(case: Case, folder: Path) -> Iterator[System]:
    """Yield programs that call systems from C, after a look at their raw scores.

    This process ends with an error if an answer of skforge's differs in one bit.
    """
    checked = np.ascontiguousarray(case.rows[:CHECKED_ROWS], case.forest.input_dtype)
    wanted = None
    for number, (name, shown) in enumerate(NAMES.items()):
        place = folder / str(number)
        place.mkdir()
        if name.startswith("tl2cgen") and len(case.forest.leaf_value) > MOST_LEAVES:
            print(
                f"  {shown} is left out: more than {MOST_LEAVES:,} leaves", flush=True
            )
            continue
        try:
            built = SYSTEMS[name](case, place)
        except NotForModelError as error:
            print(f"  {shown} is left out: {str(error)[:120]}", flush=True)
            continue
        found = answers(built, checked)
        if number == 0:
            wanted = found
        ours = name.startswith("skforge")
        if wanted is None and ours:  # the estimator was compared with its own library
            wanted = _ours(case, checked).astype(found.dtype)
        if ours:
            difference = describe_difference(found, wanted.reshape(found.shape))
            if difference is not None:
                raise SystemExit(f"{case.name}: {shown} differs: {difference}")
        yield System(shown, Program(built, place), "raw" if ours else "", ours)


def _ours(case: Case, rows: NDArray[Any]) -> NDArray[Any]:
    import skforge

    return np.asarray(skforge.compile_forest(case.forest).predict_raw(rows))


class Program:
    """A program, and where its rows lie."""

    def __init__(self, built: Built, place: Path) -> None:
        self._program, self._place = built.program, place

    def __call__(self, batch: NDArray[Any]) -> None:
        """Do nothing: its calls are made from C."""

    def timed(
        self, batches: list[NDArray[Any]], limits: Limits, evicting: int
    ) -> array[int]:
        """Return the nanoseconds of calls, without the clock's own."""
        np.concatenate(batches).tofile(self._place / "rows.bin")
        rows, seconds = sum(map(len, batches)), min(limits.seconds, 1e6)
        command = [self._program, "rows.bin", rows, "calls", "taken"]
        run([*command, len(batches[0]), limits.calls, seconds, evicting], self._place)
        taken = np.fromfile(self._place / "taken", np.int64)
        return array("q", np.maximum(taken[1:] - taken[0], 0).tobytes())
