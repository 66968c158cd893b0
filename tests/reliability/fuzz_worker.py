"""A process that reads changed files and says of each what became of it.

``python -m tests.reliability.fuzz_worker KIND FIRST LAST SEEDS`` prints a line
before a file is read, so that whoever reads the lines knows which one crashed or hung,
and a line of JSON after it. Memory is limited; errors that are not ours, MemoryError
among them, are losses with the place where they were raised.

What is right is said by the source library (``oracle.py``): a file that both read must
be predicted with the library's bits, on rows around the thresholds. Where one reads
what the other refuses, the outcome is a class of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import skforge
from skforge import CompiledForest, Schedule, SkforgeError
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import CompiledModule
from skforge.outputs.answers import of_scores
from tests.reliability import formats
from tests.reliability.formats import FORMATS, mutant
from tests.reliability.oracle import LIBRARIES, Answer, Oracle, same
from tests.reliability.records_check import check_records

#: Address space that reading one small file may add to what the process has.
SPARE = 1 << 30
#: One model in so many that could be read is compiled as well, by one small schedule;
#: one in so many of these by the default schedules.
COMPILED, DEFAULTS = 200, 5
#: Characters of an error's text: a damaged file must not fill a log.
MOST_TEXT = 2000
_MOST_CELLS = 1 << 16  # values of the rows predicted; a model may have 2^31 features
_ROWS = 16
_SETS = (Comparison.IN, Comparison.NOT_IN, Comparison.MEMBER)


class Wrong(AssertionError):
    """Predictions that are not the library's."""


def main(kind: str, first: int, last: int, seeds: Path) -> None:
    """Read the files of some numbers."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    os.environ["SKFORGE_CACHE"] = "off"
    oracle = None
    if kind in LIBRARIES:
        oracle = Oracle(kind, formats.files(kind, seeds)[0])
    _warm(kind, seeds)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="skforge-fuzz-", dir=memory) as folder:
        path = Path(folder) / f"mutant{FORMATS[kind]}"
        for number in range(first, last):
            path.write_bytes(mutant(kind, number, seeds))
            print(number, flush=True)
            _forget_peak()
            before, start = _memory("VmRSS"), time.process_time()
            outcome = attempt(path, Random(number), oracle, seeds)
            seconds = time.process_time() - start
            facts = [*outcome, round(seconds, 4), _memory("VmHWM") - before]
            print(json.dumps(facts), flush=True)
    if oracle is not None:
        oracle.close()


def attempt(
    path: Path, random: Random, oracle: Oracle | None, seeds: Path
) -> tuple[str, str]:
    """Return what became of a file, and why.

    That is "refused" or "read" where skforge and the library agree, "differ" where one
    of them refuses, "library" where it crashed, and "lost".
    """
    if oracle is None:
        return _ours(path, random, seeds)
    state = random.getstate()
    found = _judged(path, random, oracle)
    if found[0] == "lost" or "crashes" in found[1]:
        # once more in a fresh process: what was read before may have harmed this one
        oracle.renew()
        random.setstate(state)
        found = _judged(path, random, oracle)
    return found


def _judged(path: Path, random: Random, oracle: Oracle) -> tuple[str, str]:
    library = oracle.load(path)
    try:
        forest = skforge.load_forest(path)
    except SkforgeError as error:
        if len(str(error)) > MOST_TEXT:
            return "lost", f"a message of {len(str(error)):,} characters"
        return _refused(error, library, oracle)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return "lost", f"read: {_foreign(error)}"
    if library.outcome == "crashed":
        return "library", f"{_ends(library)} on a file that skforge reads"
    if library.outcome == "refused":
        return "differ", f"skforge reads what it refuses: {_short(library.what)}"
    try:
        rows = rows_for(forest, random, library)
        if rows is None:
            return "read", "wide"
        theirs = oracle.predict(rows)
        if theirs.outcome == "crashed":
            return "library", f"{_ends(theirs)} on rows"
        if theirs.outcome == "refused":
            return "differ", f"skforge reads, it refuses rows: {_short(theirs.what)}"
        raw = reference_raw(forest, rows)
        differs(forest, raw, theirs.outputs)
        if random.randrange(COMPILED):
            return "read", "predicted"
        compare(forest, forest, rows, raw, random)
        return "read", "compiled"
    except Wrong as error:
        return "lost", f"wrong: {error}"
    except SkforgeError as error:
        return "lost", f"predict: {type(error).__name__}: {_short(str(error))}"
    except Exception as error:  # noqa: BLE001
        return "lost", f"predict: {_foreign(error)}"


def _ends(answer: Answer) -> str:
    return answer.what if answer.what == "hangs" else f"crashes ({answer.what})"


def _refused(error: SkforgeError, library: Answer, oracle: Oracle) -> tuple[str, str]:
    """Return what it is worth that skforge refuses a file."""
    name = type(error).__name__
    if library.outcome == "crashed":
        return "library", f"ends ({library.what}) on a file that skforge refuses"
    if library.outcome == "refused":
        return "refused", name
    n = library.n_features
    rows = np.zeros((2, 1 if n is None else n), library.dtype) if (n or 0) < 9999 else 0
    theirs = oracle.predict(rows)
    if theirs.outcome == "crashed":
        return "library", f"ends ({theirs.what}) on rows, and skforge refuses"
    if theirs.outcome == "refused":
        return "refused", f"{name}, and it refuses rows"
    return "differ", f"skforge refuses what it reads: {name}: {_short(str(error))}"


def _short(text: str) -> str:
    """Return a message without what is the file's own, so that alike ones are one."""
    text = re.sub(r"/\S*mutant\.\w+", "FILE", text.replace("\n", " "))
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", text)
    text = re.sub(r"-?\d[\d.,e+-]*|\b-?nan\b|\b-?inf\b", "#", text)
    return text[:110]


def _foreign(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/skforge/" in frame.filename]
    where = (own or frames)[-1]
    name = where.filename.rpartition("/skforge/")[2]
    return f"{type(error).__name__} in {name}:{where.lineno}: {str(error)[:100]}"


def differs(forest: Forest, raw: Any, outputs: dict[str, Any]) -> None:
    """Raise ``Wrong`` unless predictions have the library's bits."""
    pairs: list[tuple[str, Any, Any]]
    if forest.source == "onnx":
        pairs = _onnx_pairs(forest, raw, [*outputs.values()])
    else:
        flat = raw[:, 0] if raw.shape[1] == 1 else raw
        value = of_scores(forest.answers, "transformed", raw)
        pairs = [("raw", flat, outputs["raw"]), ("value", value, outputs["value"])]
    for name, found, expected in pairs:
        if not same(found, expected):
            expected = np.asarray(expected)
            if found.shape != expected.shape or found.dtype != expected.dtype:
                what = f"{found.dtype} {found.shape[1:]} for {expected.dtype} "
                raise Wrong(f"{name}: {what}{expected.shape[1:]}")
            raise Wrong(f"{name} of {forest.source}")


def _onnx_pairs(
    forest: Forest, raw: Any, outputs: list[Any]
) -> list[tuple[str, Any, Any]]:
    """Return what each output of a graph has to be; a graph names them in any order."""
    pairs: list[tuple[str, Any, Any]] = []
    for output in outputs:
        theirs = _table(forest, output)
        if forest.task == "regression":
            flat = theirs.ndim == 2 and theirs.shape[1] == 1
            value = of_scores(forest.answers, "transformed", raw)
            pairs.append(("value", value, theirs[:, 0] if flat else theirs))
        elif theirs.dtype.kind == "f":
            ours = of_scores(forest.answers, "probabilities", raw)
            pairs.append(("value", ours, theirs))
        else:
            label = of_scores(forest.answers, "labels", raw)
            if forest.class_labels:
                label = np.array(forest.class_labels)[label]
            kind = theirs.dtype if theirs.dtype.kind == "i" else object
            pairs.append(("label", label.astype(kind), theirs))
    return pairs


def _table(forest: Forest, output: Any) -> Any:
    """Return an output as an array: ZipMap's dictionaries are rows of scores."""
    if not isinstance(output, list) or not output or not isinstance(output[0], dict):
        return np.asarray(output)
    labels = forest.class_labels
    labels = labels if {*labels} == {*output[0]} else tuple(output[0])
    return np.array([[row[one] for one in labels] for row in output], np.float32)


def compare(
    model: Any, forest: Forest, rows: Any, expected: Any, random: Random
) -> None:
    """Compile, and compare with the reference bit by bit; then through its methods."""
    default = not random.randrange(DEFAULTS)
    module = skforge.compile_forest(forest, None if default else Schedule())
    found = module.predict_raw(rows)
    if not same(found.reshape(expected.shape), expected):
        raise Wrong("compiled predictions differ from the reference")
    module.predict(rows)
    finite = rows_for(forest, random, finite=True)
    if isinstance(model, CompiledModule):
        model.predict_raw(rows)
    elif isinstance(model, CompiledForest):
        for method in ("predict", "predict_proba", "apply"):
            if hasattr(model, method):
                getattr(model, method)(finite)


def rows_for(
    forest: Forest, random: Random, library: Answer | None = None, finite: bool = False
) -> Any:
    """Return rows at the thresholds and beside them, with NaN; None if too wide.

    XGBoost takes no infinities. Rows are of a dtype that the library takes, and of
    numbers that no cast of theirs or ours changes.
    """
    if forest.n_features * _ROWS > _MOST_CELLS or not forest.n_features:
        return None
    draw = np.random.default_rng(random.randrange(2**32))
    n = forest.n_features
    rows = draw.standard_normal((_ROWS, n)).astype(forest.input_dtype)
    threshold = forest.threshold.copy()
    sets = np.isin(forest.comparison, _SETS)
    step = np.array([-np.inf, np.inf], threshold.dtype)
    for i in range(2, _ROWS):
        order = draw.permutation(len(threshold))
        near = threshold[order]
        beside = np.nextafter(near, draw.choice(step, len(near)))
        near = np.where(draw.random(len(near)) < 0.5, near, beside)
        code = draw.integers(-1, 40, len(near)) + draw.choice((0, 0, 0, 0.5), len(near))
        near = np.where(sets[order], code, near)
        rows[i, forest.feature[order]] = near
    rows[_ROWS // 2 :][draw.random((_ROWS - _ROWS // 2, n)) < 0.3] = np.nan
    if forest.source != "xgboost":
        rows[1] = draw.choice(np.array([np.inf, -np.inf, 0, -1, 1e30]), n)
    if finite or forest.source == "xgboost":
        limit = np.finfo(forest.input_dtype).max
        rows = np.clip(rows, -limit, limit)
    if finite:
        return np.nan_to_num(rows)
    dtype = np.dtype(library.dtype if library is not None else rows.dtype)
    if dtype.kind == "i":
        rows = np.nan_to_num(np.round(rows), nan=3)
        rows = np.clip(rows, -(2**31), 2**31 - 129)
    return np.ascontiguousarray(rows.astype(dtype))


# ------------------------------------------------------------ our own files


def _ours(path: Path, random: Random, seeds: Path) -> tuple[str, str]:
    """Judge files that no library reads, with what they were before the change."""
    try:
        if path.suffix == ".jsonl":
            return check_records(path, _texts(seeds), random)
        model = skforge.load(path)
        forest = _forest_of(model)
        known = _saved(seeds).get(path.read_bytes()[-64:])
        if known is not None and known != forest.content_hash():
            return "lost", "wrong: another model under the digest of a good one"
        rows = rows_for(forest, random)
        if rows is None:
            return "read", "wide"
        raw = reference_raw(forest, rows)
        if not random.randrange(COMPILED):
            compare(model, forest, rows, raw, random)
            return "read", "compiled"
        return "read", "as it was" if known is not None else "forged, and valid"
    except Wrong as error:
        return "lost", f"wrong: {error}"
    except SkforgeError as error:
        if len(str(error)) > MOST_TEXT:
            return "lost", f"a message of {len(str(error)):,} characters"
        return "refused", type(error).__name__
    except Exception as error:  # noqa: BLE001
        return "lost", _foreign(error)


@lru_cache
def _saved(seeds: Path) -> dict[bytes, str]:
    """Return the content of each good artifact's forest, by the digest it ends with."""
    found = {}
    for file in seeds.glob("*.skforge"):
        forest = _forest_of(skforge.load(file))
        found[file.read_bytes()[-64:]] = forest.content_hash()
    return found


@lru_cache
def _texts(seeds: Path) -> bytes:
    ((_, content),) = formats.seeds("tuning record", seeds)
    return content


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
