"""What the stages of a GPU's first run share: device, models, compiler processes."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from measure import compare
from models import Model, cache_folder, get

from benchmarks.gpu.bench import Group
from benchmarks.gpu.devices import Clock, clock_of
from benchmarks.gpu.first_run_items import Item
from skforge import load_forest
from skforge.compiler import driver
from skforge.compiler.target import Target
from skforge.engine.targets import resolve_target
from skforge.exceptions import SkforgeError
from skforge.forest.forest import Forest
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.runtime.compilers import code_of
from skforge.schedule.schedule import Schedule

Array = np.ndarray[Any, Any]

#: Rows that are packed of a model.
ROWS = 1024


@dataclass(slots=True)
class Setup:
    """The device, the models, and processes beside this one."""

    target: str  # cuda, hip or emulated
    names: tuple[str, ...]  # of models
    packed: Path | None = None  # the file of ``pack``; None: the benchmarks' own models
    quick: bool = False  # few schedules and sizes are enough
    end: float = float("inf")  # of ``monotonic``: nothing is begun later
    group: Group = field(default_factory=Group)
    _clock: Clock | None = None
    _pool: ProcessPoolExecutor | None = None

    @property
    def on_device(self) -> bool:
        return self.target in ("cuda", "hip")

    def clock(self) -> Clock:
        self._clock = self._clock or clock_of(self.target)
        return self._clock

    def machine(self) -> Target:
        return resolve_target(self.target)

    def model(self, name: str) -> Model:
        return get(name) if self.packed is None else unpacked(self.packed, name)

    def forest(self, name: str) -> tuple[Forest, Array]:
        model = self.model(name)
        return load_forest(model.source), np.load(model.rows)

    def broken(self) -> bool:
        """Tell whether an earlier kernel broke the device's context."""
        try:
            if self._clock is not None:
                self._clock.wait()
        except Exception:  # noqa: BLE001 - CuPy's, of any kind
            return True
        return False

    def compile_ahead(self, name: str, schedules: Sequence[Schedule]) -> None:
        """Fill the cache of machine code, by a process for each core."""
        if not self.on_device:
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(os.cpu_count(), mp_context=context)
        work = partial(_compile, self.model(name).source, self.machine())
        list(self._pool.map(work, schedules, chunksize=4))

    def close(self) -> None:
        self.group.close()
        if self._pool is not None:
            self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Stage:
    number: int
    title: str
    items: Callable[[Setup], Iterator[Item]]


def differs(got: Any, wanted: Array, what: str) -> list[str]:
    difference, same = compare(np.asarray(got).reshape(wanted.shape), wanted)
    return [] if same else [f"{what}: by {difference:.2g}"]


@contextmanager
def of_schedule(label: str, refused: dict[str, str]) -> Iterator[None]:
    """Note why a schedule is refused; name the one at which anything else failed."""
    try:
        yield
    except SkforgeError as error:
        refused[label] = str(error).partition("\n")[0][:100]
    except Exception as error:
        raise RuntimeError(f"{label}: {type(error).__name__}: {error}") from error


def _compile(source: Any, target: Target, schedule: Schedule) -> None:
    """Put a schedule's machine code into the cache."""
    try:
        hir = driver.build_hir(_forest(source), schedule, "exact", kind="gpu")
        lowered = driver.lower(hir, target)
        text = emit_gpu(lowered.kernel.function, target).source
        code_of(text, target.cpu, "hip" if target.kind == "hip" else "cuda")
    except SkforgeError:
        return  # the item that times the schedule says why


@cache
def _forest(source: Any) -> Forest:
    return load_forest(source)


# ------------------------------------------------------------ models as files


def pack(names: Sequence[str], file: Path) -> None:
    """Write models and some of their rows to a zip file, for a bare machine."""
    with ZipFile(file, "w", ZIP_DEFLATED) as out:
        for name in dict.fromkeys(names):
            model, at = get(name), name.replace("/", "-")
            path = Path(model.path).name
            known = {"path": path, "rows": "rows.npy", "wrapper": None}
            out.write(model.path, f"{at}/{path}")
            out.writestr(f"{at}/model.json", json.dumps(asdict(model) | known))
            with out.open(f"{at}/rows.npy", "w") as rows:
                np.save(rows, np.load(model.rows)[:ROWS])


def unpacked(file: Path, name: str) -> Model:
    """Return a packed model, whose files go to the benchmarks' cache."""
    folder = cache_folder() / f"packed-{file.stat().st_mtime_ns}"
    at = folder / name.replace("/", "-")
    if not (at / "rows.npy").exists():
        with ZipFile(file) as given:
            members = [m for m in given.namelist() if m.startswith(f"{at.name}/")]
            given.extractall(folder, members)
    known = json.loads((at / "model.json").read_text("utf-8"))
    return Model(**known | {key: str(at / known[key]) for key in ("path", "rows")})
