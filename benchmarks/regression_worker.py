"""The other end of regression.py: one commit's skforge counts and times one model.

Counts are the same in every run. What a commit has no way to say is left out, with the
reason: an older one need not have what this file reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from assembly import mnemonics
from counters import count
from executed import executed
from systems import source_of
from worker import explain, filling, main

GPU = "sm_90"


class Commit:
    """A package of skforge, with one model at a time."""

    def load(self, package: str, path: str, kind: str, rows: str) -> dict[str, Any]:
        """Compile a model with the package in a folder, and answer its rows."""
        if package not in sys.path:
            sys.path.insert(0, package)
        import skforge

        home = Path(skforge.__file__).parents[1]
        assert home == Path(package).resolve(), f"skforge is from {home}"
        self.rows = np.load(rows)
        self.forest = skforge.load_forest(source_of({"path": path, "kind": kind}))
        self.module = skforge.compile_forest(self.forest)
        self.module.compile_all()
        return {}

    def answer(self, file: str, rows: int) -> dict[str, Any]:
        np.save(file, self.module.predict_raw(self._batch(rows)))
        return {}

    def counts(self, rows: int) -> dict[str, Any]:
        """Return what can be counted of calls with so many rows, and why not all."""
        found: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for name, measure in _COUNTS.items():
            try:
                found |= measure(self, rows)
            except Exception as error:  # noqa: BLE001 (an old commit may lack anything)
                reasons[name] = explain(error)
        return {"counts": found, "reasons": reasons}

    def warm(self, rows: int, slot: float) -> dict[str, Any]:
        batch = self._batch(rows)
        self.call = lambda: self.module.predict_raw(batch)
        for _ in range(8):  # small batches compile an entry after some calls
            self.call()
        self.repeats, _ = filling(self._time, self._time(1), slot)
        return {}

    def sample(self) -> dict[str, Any]:
        """Return seconds of a call that this thread computed: waits do not count."""
        return {"seconds": self._time(self.repeats) / self.repeats}

    def _time(self, repeats: int) -> float:
        call = self.call
        start = thread_time()
        for _ in range(repeats):
            call()
        return thread_time() - start

    def _batch(self, rows: int) -> Any:
        batch = np.resize(self.rows, (rows, self.rows.shape[1]))
        return np.ascontiguousarray(batch)


def _kernel(commit: Commit, rows: int) -> Any:
    return commit.module._kernel(rows, "accumulator")


def _instructions(commit: Commit, rows: int) -> dict[str, int]:
    """Return instructions that stand in the kernel, not those that run."""
    text = commit.module.inspect("asm", n_rows=rows)
    return {"kernel instructions": mnemonics(text).total()}


def _sizes(commit: Commit, rows: int) -> dict[str, int]:
    kernel = _kernel(commit, rows)
    return {
        "model bytes": sum(array.nbytes for array in kernel._data),
        "code bytes": len(kernel.jit.binary),
    }


def _schedules(commit: Commit, rows: int) -> dict[str, int]:
    return {"compiled kernels": len(set(commit.module.schedules.values()))}


def _calls(commit: Commit, rows: int) -> dict[str, int]:
    """Return the calls that Python makes in one call, once entries are compiled."""
    batch = commit._batch(rows)
    for _ in range(8):
        commit.module.predict_raw(batch)
    return {"Python calls": calls_of(lambda: commit.module.predict_raw(batch))}


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, a call runs."""
    seen = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen - 2  # the work itself, and the end of profiling


def _hardware(commit: Commit, rows: int) -> dict[str, int]:
    """Return instructions that the hardware counted in a call, with Python's."""
    batch = commit._batch(rows)
    times = max(1, 4096 // rows)

    def work() -> None:
        for _ in range(times):
            commit.module.predict_raw(batch)

    work()
    found, reason = count(work)
    if not found:
        raise RuntimeError(reason)
    return {"hardware instructions": found["instructions"] // times}


def _executed(commit: Commit, rows: int) -> dict[str, int]:
    forest = commit.forest
    return {"executed instructions": executed(forest, commit._batch(rows))}


def _gpu(commit: Commit, rows: int) -> dict[str, int]:
    """Return instructions and registers of the GPU kernels that would run."""
    from gpu.gpu_sass import disassemble, kernels_of, operations

    from skforge import Target
    from skforge.compiler import driver
    from skforge.gpu.codegen.emitter import emit_gpu
    from skforge.gpu.defaults import default_gpu_schedules
    from skforge.gpu.runtime.compilers import compile_text, cubin_resources

    target = Target.cuda(GPU)
    table = default_gpu_schedules(commit.forest, target)
    first = max(low for low, _ in table if low <= max(rows, min(table)[0]))
    (schedule,) = (one for (low, _), one in table.items() if low == first)
    hir = driver.build_hir(commit.forest, schedule, "exact", kind="gpu")
    plan = emit_gpu(driver.lower(hir, target).kernel.function, target)
    code, _ = compile_text(plan.source, GPU, "cuda")
    used = cubin_resources(code)
    texts = kernels_of(disassemble(code)).values()
    return {
        "GPU instructions": len(list(chain.from_iterable(map(operations, texts)))),
        "GPU registers": max(one.registers for one in used.values()),
    }


_COUNTS = {
    "kernel instructions": _instructions,
    "model and code bytes": _sizes,
    "compiled kernels": _schedules,
    "Python calls": _calls,
    "hardware instructions": _hardware,
    "executed instructions": _executed,
    "GPU instructions": _gpu,
}

if __name__ == "__main__":
    main(Commit())
