"""The other end of remote.py: loads a system, and times its calls on command.

Commands come in as lines of JSON and are answered by lines of JSON. Nothing here needs
more than NumPy, so that it runs in any peer's environment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np

MOST_CALLS = 1 << 20


def filling(
    timed: Callable[[int], float], first: float, slot: float, most: int = MOST_CALLS
) -> tuple[int, float]:
    """Return how many calls fill a slot of seconds, and what they take."""
    repeats, taken = 1, first
    while taken < slot / 2 and repeats < most:
        repeats *= max(2, min(10, round(slot / max(taken, 1e-9))))
        taken = timed(repeats)
    return repeats, taken


class Worker:
    """One system with one model, number of threads and batch at a time."""

    def load(self, module: str, function: str, model: dict[str, Any]) -> dict[str, Any]:
        """Load a model; the time includes everything but imports of its own module."""
        self.rows = np.load(model["rows"])
        self.model = model
        loader = getattr(importlib.import_module(module), function)
        loader_imports(function, model["kind"])
        start = perf_counter()
        self.system = loader(model)
        # The first call belongs to it: some systems compile then.
        self.system.predict(1)(self.rows[:1])
        return {
            "seconds": perf_counter() - start,
            "answer": self.system.answer,
            "compile_seconds": self.system.compile_seconds,
        }

    def threads(self, count: int) -> dict[str, Any]:
        with contextlib.suppress(ImportError):
            from threadpoolctl import threadpool_limits

            threadpool_limits(limits=count)
        self.call = self.system.predict(count)
        return {}

    def answers(self, file: str, seconds_left: float) -> dict[str, Any]:
        """Write predictions of the rows, or of the first if all would take too long."""
        np.save(file, self.system.adapt(self._some(self.call, seconds_left)))
        return {}

    def transformed(self, file: str, seconds_left: float) -> dict[str, Any]:
        from systems import transformed

        np.save(file, self._some(transformed(self.model), seconds_left))
        return {}

    def _some(self, call: Any, seconds: float) -> Any:
        few = self.rows[:64]
        start = perf_counter()
        call(few)
        a_row = (perf_counter() - start) / len(few)
        n = max(len(few), min(len(self.rows), int(seconds / a_row)))
        return np.asarray(call(self.rows[:n]))

    def warm(self, rows: int, slot: float) -> dict[str, Any]:
        """Cut batches and find how many calls fill a slot of seconds."""
        wanted = max(1, min(64, 4096 // rows))
        pool = np.resize(self.rows, (wanted * rows, self.rows.shape[1]))
        self.batches = [
            np.ascontiguousarray(pool[i * rows : (i + 1) * rows]) for i in range(wanted)
        ]
        self.following = cycle(self.batches)
        first = self._time(1)
        # First calls may compile something: what a call takes is known after some.
        later = [self._time(1) for _ in range(8 if first < slot else 2)]
        first = min([first, *later])
        self.repeats, taken = filling(self._time, first, slot)
        return {"first": first, "slot": taken}

    def sample(self) -> dict[str, Any]:
        """Return the seconds of a call, over one slot."""
        return {"seconds": self._time(self.repeats) / self.repeats}

    def drop(self) -> dict[str, Any]:
        self.batches, self.following = [], cycle([])
        gc.collect()
        return {}

    def _time(self, repeats: int) -> float:
        call, following = self.call, self.following
        start = perf_counter()
        for _ in range(repeats):
            call(next(following))
        return perf_counter() - start


IMPORTS = {
    "xgboost_wrapper": ["xgboost"],
    "lightgbm_wrapper": ["lightgbm"],
    "lignum_compiled": ["lignum"],
    "hummingbird": ["hummingbird.ml"],
    "skforge": ["skforge.estimators", "skforge.engine.cpu.jit"],
}
IMPORTS["skforge_avx2"] = IMPORTS["skforge"]
OWN = {"onnx": "onnxruntime", "sklearn": "sklearn.ensemble"}


def loader_imports(function: str, kind: str) -> None:
    """Import what a system needs now: preparing a model does not include that."""
    names = IMPORTS.get(function, [function])
    if function.startswith("skforge"):  # it asks the model's own library, too
        names = [*names, OWN.get(kind, kind)]
    for name in names:
        importlib.import_module(name)


def explain(error: BaseException) -> str:
    """Return the first sentence of an error, with its kind where it is not ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    kind = type(error).__name__
    return text if kind == "NotForModelError" else f"{kind}: {text}"


def main(worker: object) -> None:
    """Answer commands with the methods of a worker until there are no more."""
    # Libraries print: keep the pipe for answers, and send the rest to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            answer = getattr(worker, name)(**command)
        except Exception as error:  # noqa: BLE001 (any failure is a peer's answer)
            answer = {"error": explain(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(Worker())
