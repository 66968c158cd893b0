"""Faults around artifacts: killed while saving, damaged, the disk full."""

from __future__ import annotations

import itertools
import os
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import skforge
from skforge import CompiledForest, SkforgeError
from skforge.forest.forest import Forest
from tests.reliability import processes
from tests.reliability.rows import Row
from tests.reliability.seeds import QUICK, rows


def killed_while_saving(folder: Path, times: int) -> Row:
    """Kill -9 a process that saves without pause; the file is always a whole one."""
    row = Row("faults", "kill -9 while a file is saved over an older one")
    from sklearn.ensemble import RandomForestClassifier

    X, y = rows(600)
    forest = skforge.load_forest(RandomForestClassifier(20, random_state=0).fit(X, y))
    path = folder / "killed.skforge"
    skforge.save(replace(forest, missing_value=-1.0), path)
    random = Random(0)
    replaced, begun, last = 0, 0, -1.0
    for round_ in range(times):
        child = os.fork()
        if child == 0:
            try:
                for n in itertools.count(round_ * 1000):
                    skforge.save(replace(forest, missing_value=float(n)), path)
            finally:
                os._exit(1)
        time.sleep(random.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            found = skforge.load(path)
        except SkforgeError as error:
            row.count(False, f"round {round_}: {error}")
            continue
        mine = found.missing_value in (last, *map(float, _numbers(round_)))
        same = replace(found, missing_value=0.0).content_hash()
        whole = same == replace(forest, missing_value=0.0).content_hash()
        row.count(mine and whole, f"round {round_}: another model was loaded")
        replaced += found.missing_value != last
        last = found.missing_value
        begun += len(list(folder.glob(".killed.skforge.*")))
        for left in folder.glob(".killed.skforge.*"):
            left.unlink()
    row.notes = (
        f"after {replaced} kills it was a new file, after {times - replaced} the old "
        f"one; {begun} kills left an unfinished file beside it, which a save removes "
        "after an hour"
    )
    return row


def _numbers(round_: int) -> range:
    return range(round_ * 1000, round_ * 1000 + 1000)


# ------------------------------------------------------------ damage


def damaged_everywhere(folder: Path, bits: tuple[int, ...], step: int) -> list[Row]:
    """Flip bits of every byte, and cut the file at every length."""
    from sklearn.tree import DecisionTreeClassifier

    X, y = rows(40, 2)
    words = np.array(["ash", "elm", "oak"])[y]
    tree = DecisionTreeClassifier(max_depth=2, random_state=0).fit(X, words)
    model = CompiledForest(tree, schedule=QUICK).fit(X)
    made = []
    for kind, saved in (("an estimator", model), ("a forest", model.forest_)):
        path = folder / "damaged.skforge"
        skforge.save(saved, path)
        whole = path.read_bytes()
        flips = Row("faults", f"{kind}'s file of {len(whole):,} bytes, bits flipped")
        cuts = Row("faults", f"{kind}'s file of {len(whole):,} bytes, cut off")
        flips.notes = f"{len(bits)} bits of each byte" if step == 1 else "some bytes"
        cuts.notes = "at each length" if step == 1 else "at some lengths"
        expected = _facts(skforge.load(path), X)
        for at in range(0, len(whole), step):
            for bit in bits:
                changed = bytearray(whole)
                changed[at] ^= 1 << (bit + at) % 8
                path.write_bytes(changed)
                _judge(flips, path, X, expected, f"bit {(bit + at) % 8} of byte {at}")
            path.write_bytes(whole[:at])
            _judge(cuts, path, X, expected, f"cut to {at} bytes")
        for row in (flips, cuts):
            loaded = row.facts.get("loaded", 0)
            row.notes += (
                f": {row.tried - loaded:,} refused with InvalidModelError, {loaded:,} "
                "loaded with the same model, schedules and predictions"
            )
        made += [flips, cuts]
    return made


def _judge(row: Row, path: Path, X: Any, expected: Any, what: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = _facts(skforge.load(path), X)
    except SkforgeError:
        row.count(True, what)
        return
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        row.count(False, f"{what}: {type(error).__name__}: {error}")
        return
    if row.count(found == expected, f"{what}: another model was loaded"):
        row.facts["loaded"] = row.facts.get("loaded", 0) + 1


def _facts(model: Any, X: Any) -> Any:
    """Return what a model is and what it predicts, as bytes and texts."""
    if isinstance(model, Forest):
        raw = skforge.compile_forest(model, QUICK).predict_raw(X)
        return model.content_hash(), raw.tobytes()
    params = model.get_params(deep=False) | {"estimator": repr(model.estimator)}
    answers = [model.predict(X), model.predict_proba(X), model.apply(X)]
    return (
        repr(params),
        model.forest_.content_hash(),
        repr(model.schedule_),
        [answer.tobytes() for answer in answers],
    )


# ------------------------------------------------------------ a full disk


_SAVE_LIMITED = """
import resource, signal, sys
import skforge
model = skforge.load(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    skforge.save(model, sys.argv[2])
except OSError as error:
    print(type(error).__name__, error.errno)
else:
    print("saved")
"""


def disk_full_while_saving(folder: Path, step: int, by_system: bool = True) -> Row:
    """Let the disk end after every number of bytes; the old file has to stay."""
    import errno

    row = Row("faults", "saving where the disk is full, the old file in place")
    X, y = rows(40, 2)
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_depth=2, random_state=0).fit(X, y)
    forest = skforge.load_forest(tree)
    path = folder / "full.skforge"
    skforge.save(replace(forest, missing_value=1.0), path)
    old, size = path.read_bytes(), path.stat().st_size
    from skforge import _container

    real = os.fdopen
    for most in range(0, size, step):
        _container.os.fdopen = lambda *a, n=most: _Full(real(*a), n)  # type: ignore[attr-defined]
        try:
            skforge.save(forest, path)
            ended: Any = "it was saved"
        except OSError as error:
            ended = None if error.errno == errno.ENOSPC else repr(error)
        finally:
            _container.os.fdopen = real  # type: ignore[attr-defined]
        left = list(folder.glob(".full.skforge.*"))
        well = ended is None and path.read_bytes() == old and not left
        row.count(well, f"after {most} bytes: {ended}, {len(left)} files left")
    # the same by the system's own limit
    for most in (0, size // 2, size - 1) if by_system else ():
        code, out, err = processes.run(_SAVE_LIMITED, path, path, str(most))
        well = code == 0 and out.startswith("OSError") and path.read_bytes() == old
        row.count(well, f"limit of {most} bytes: {out} {processes.said(code, err)}")
    row.notes = "OSError with ENOSPC (or EFBIG, by RLIMIT_FSIZE); nothing is left over"
    return row


class _Full:
    """A file on a disk that ends."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._left = file, most

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        import errno

        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
