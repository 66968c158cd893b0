"""The items of a GPU's first run: their results on disk, and a stage that runs them.

Each item's result is a line of a file, written when the item ends, so that a process
that is killed loses one item. An item that began twice and never ended is given up.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

#: Seconds to compile a kernel, of which a stage's plan is made.
KERNEL = 0.1
#: An item that takes so many times what was expected is stopped, after so many seconds.
PATIENCE, LEAST_PATIENCE = 10.0, 120.0
#: Seconds after a stage's end when what still runs is stopped.
LATE = 20.0
#: Starts of an item after which it is given up.
STARTS = 2
#: Exit status: some items failed; some are left.
FAILED, LEFT = 1, 2


@dataclass(frozen=True, slots=True)
class Item:
    """Something to measure.

    ``work`` returns what is kept, as JSON has it; ``wrong`` lists what is not exact.
    """

    name: str  # by which a later process knows that it is done
    work: Callable[[], dict[str, Any]]
    kernels: int = 0  # that it compiles
    seconds: float = 1.0  # that it is expected to take besides

    @property
    def expected(self) -> float:
        return self.seconds + KERNEL * self.kernels


@dataclass(slots=True)
class Log:
    """Results on disk, a line each, in the order in which they came."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read what is there; a line that was cut off when a process died is lost."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self.path.read_text("utf-8") if self.path.exists() else ""
        for line in text.splitlines():
            try:
                self.lines.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        if text and not text.endswith("\n"):
            self._write("\n")

    def add(self, stage: int, item: str, **what: Any) -> None:
        """Append a line, and see that it is on the disk."""
        line = {"stage": stage, "item": item, **what}
        self.lines.append(line)
        self._write(json.dumps(line, separators=(",", ":"), default=float) + "\n")

    def _write(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def results(self, stage: int) -> dict[str, dict[str, Any]]:
        """Return the last line of each item of a stage that ended."""
        mine = [one for one in self.lines if one["stage"] == stage]
        return {one["item"]: one for one in mine if "seconds" in one}

    def done(self, stage: int, again: bool) -> set[str]:
        """Return items that are not to be run, without the failed ones if ``again``."""
        found = self.results(stage)
        return {
            name
            for name, one in found.items()
            if not one.get("partial") and not (again and failed(one))
        }

    def starts(self, stage: int, item: str) -> int:
        """Return how often an item began since it last ended."""
        mine = [x for x in self.lines if (x["stage"], x["item"]) == (stage, item)]
        ends = [i for i, one in enumerate(mine) if "seconds" in one]
        return len(mine) - (ends[-1] + 1 if ends else 0)


def failed(line: dict[str, Any]) -> bool:
    """Tell whether a result is an error, or has values that are not exact."""
    return "error" in line or bool(line.get("result", {}).get("wrong"))


def run_stage(
    stage: int,
    items: Iterable[Item],
    log: Log,
    end: float,
    *,
    again: bool = False,
    broken: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print,
) -> int:
    """Run a stage's items until the time is over; return the exit status.

    Items that have a result are left out, failed ones if not ``again``. None begins
    that is expected to last beyond ``end``, which is of ``monotonic``. ``broken`` tells
    after an error whether no later item can succeed in this process.
    """
    done, left = log.done(stage, again), []
    for item in items:
        if item.name in done:
            continue
        if log.starts(stage, item.name) >= STARTS:
            log.add(stage, item.name, seconds=0.0, error="began twice, never ended")
            say(f"  {item.name}: given up, it began twice and never ended")
            continue
        if left or monotonic() + item.expected > end:
            left.append(item)
            continue
        log.add(stage, item.name, began=True)
        start = monotonic()
        patience = max(LEAST_PATIENCE, PATIENCE * item.expected)
        patience = min(patience, max(1.0, end - start) + LATE)
        # A kernel that never ends holds the process: only another thread can end it.
        faulthandler.dump_traceback_later(patience, exit=True, file=sys.__stderr__)
        try:
            found: dict[str, Any] = {"result": item.work()}
        except Exception as error:  # noqa: BLE001 - the next item may do better
            found = {"error": f"{type(error).__name__}: {error}"[:2000]}
        finally:
            faulthandler.cancel_dump_traceback_later()
        taken = monotonic() - start
        partial = {"partial": True} if found.get("result", {}).get("partial") else {}
        log.add(stage, item.name, seconds=round(taken, 3), **partial, **found)
        wrong = found.get("result", {}).get("wrong")
        words = found.get("error") or (f"WRONG: {wrong}" if wrong else "done")
        say(f"  {item.name}: {words} ({taken:.1f} s)")
        if "error" in found and broken():
            say("  the device's context is broken: a new process goes on")
            return LEFT
    if left:
        need = sum(item.expected for item in left)
        say(f"  {len(left)} items are left, about {need:.0f} s: run this stage again")
        return LEFT
    return FAILED if any(map(failed, log.results(stage).values())) else 0


def plan(stages: Iterable[Any], setup: Any) -> Iterator[str]:
    whole = 0.0
    for stage in stages:
        items = list(stage.items(setup))
        total = sum(item.expected for item in items)
        kernels = sum(item.kernels for item in items)
        longest = max(items, key=lambda item: item.expected)
        yield (
            f"{stage.number} {stage.title}: {len(items)} items, {kernels:,} kernels, "
            f"about {total / 60:.1f} min ({-(-total // 540):.0f} calls of 9); longest: "
            f"{longest.name}, {longest.expected:.0f} s"
        )
        whole += total
    yield f"together about {whole / 60:.0f} min"
