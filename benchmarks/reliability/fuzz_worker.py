"""A process that reads changed files and says of each what became of it.

``python -m benchmarks.reliability.fuzz_worker KIND FIRST LAST SEEDS`` prints a line
before a file is read, so that whoever reads the lines knows which one crashed or hung,
and a line of JSON after it. Memory is limited; errors that are not ours, MemoryError
among them, are losses with the place where they were raised.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import skforge
from benchmarks.reliability.formats import FORMATS, mutant
from skforge import CompiledForest, Schedule, SkforgeError
from skforge.compiler.forest import Forest
from skforge.compiler.module import CompiledModule
from skforge.compiler.reference import reference_raw

#: Address space that reading one small file may add to what the process has.
SPARE = 1 << 30
#: One model in so many that could be read is compiled as well, by one small schedule;
#: one in so many of these by the default schedules.
COMPILED, DEFAULTS = 20, 10
#: Characters of an error's text: a damaged file must not fill a log.
MOST_TEXT = 2000
_MOST_CELLS = 1 << 16  # values of the rows predicted; a model may have 2^31 features


def main(kind: str, first: int, last: int, seeds: Path) -> None:
    """Read the files of some numbers."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    os.environ["SKFORGE_CACHE"] = "off"
    _warm(kind, seeds)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
    with tempfile.TemporaryDirectory(prefix="skforge-fuzz-") as folder:
        path = Path(folder) / f"mutant{FORMATS[kind]}"
        for number in range(first, last):
            path.write_bytes(mutant(kind, number, seeds))
            print(number, flush=True)
            _forget_peak()
            before, start = _memory("VmRSS"), time.process_time()
            outcome = attempt(path, Random(number))
            seconds = time.process_time() - start
            facts = [*outcome, round(seconds, 4), _memory("VmHWM") - before]
            print(json.dumps(facts), flush=True)


def attempt(path: Path, random: Random) -> tuple[str, str]:
    """Return "refused", "read" or "lost", and the error's class or its place."""
    stage = "read"
    try:
        if path.suffix == ".skforge":
            model = skforge.load(path)
        else:
            model = skforge.load_forest(path)
        stage = "predict"
        forest = _forest_of(model)
        rows = rows_for(forest, random)
        if rows is None:
            return "read", "wide"
        expected = reference_raw(forest, rows)
        if random.randrange(COMPILED):
            return "read", "predicted"
        stage = "compile"
        compare(model, forest, rows, expected, random)
        return "read", "compiled"
    except SkforgeError as error:
        if len(str(error)) > MOST_TEXT:
            return "lost", f"{stage}: a message of {len(str(error)):,} characters"
        return "refused", f"{stage}: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "/skforge/" in frame.filename
        ]
        where = (own or [place])[-1]
        name = where.filename.rpartition("/skforge/")[2]
        text = str(error)[:100]
        return (
            "lost",
            f"{stage}: {type(error).__name__} in {name}:{where.lineno}: {text}",
        )


def compare(
    model: Any, forest: Forest, rows: Any, expected: Any, random: Random
) -> None:
    """Compile, and compare with the reference bit by bit; then through its methods."""
    default = not random.randrange(DEFAULTS)
    module = skforge.compile_forest(forest, None if default else Schedule())
    found = module.predict_raw(rows)
    # NaN may have any bits: a mutant's sums can be inf - inf
    if not np.array_equal(found.reshape(expected.shape), expected, equal_nan=True):
        raise AssertionError("compiled predictions differ from the reference")
    module.predict(rows)
    finite = rows_for(forest, random, finite=True)
    if isinstance(model, CompiledModule):
        model.predict_raw(rows)
    elif isinstance(model, CompiledForest):
        for method in ("predict", "predict_proba", "apply"):
            if hasattr(model, method):
                getattr(model, method)(finite)


def rows_for(forest: Forest, random: Random, finite: bool = False) -> Any:
    """Return a few rows: plain ones, thresholds, NaN, infinities; None if too wide."""
    if forest.n_features * 6 > _MOST_CELLS or not forest.n_features:
        return None
    draw = np.random.default_rng(random.randrange(2**32))
    shape = (6, forest.n_features)
    rows = draw.standard_normal(shape).astype(forest.input_dtype)
    if len(forest.threshold):
        rows[2] = draw.choice(forest.threshold, forest.n_features)
    if finite:
        return np.nan_to_num(rows, posinf=1e30, neginf=-1e30)
    rows[3, draw.random(forest.n_features) < 0.5] = np.nan
    rows[4] = draw.choice(np.array([np.inf, -np.inf, 0, -1, 1e30]), forest.n_features)
    return rows


def _forest_of(model: Any) -> Forest:
    if isinstance(model, Forest):
        return model
    found: Forest = model.forest_ if isinstance(model, CompiledForest) else model.forest
    return found


def _memory(name: str) -> int:
    """Return VmRSS, what this process has, or VmHWM, the most it has had, in kB."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0])


def _forget_peak() -> None:
    """Let VmHWM begin again; where that may not be, it is that of all files."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _warm(kind: str, seeds: Path) -> None:
    """Import and compile once, so that what comes after is the file's own doing."""
    from sklearn.tree import DecisionTreeRegressor

    skforge.CompiledForest(
        DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0]), schedule=Schedule()
    ).fit([[0.0]]).predict([[0.0]])
    mutant(kind, 0, seeds)


if __name__ == "__main__":
    name, *numbers, folder = sys.argv[1:]
    main(name, *map(int, numbers), Path(folder))
