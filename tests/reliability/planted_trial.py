"""What planted faults share: the registry, and trials that compare with the library."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import skforge
from skforge import CompiledForest
from skforge.exceptions import SkforgeError, VerificationError, VerificationWarning
from skforge.prediction import door
from tests.compared_calls import apart
from tests.reliability.planting import Edit

door.UNMADE = ()  # an error of made rows is one of ours


class EndOfTrialError(Exception):
    """Nothing more can be asked: skforge has refused the model."""


@dataclass(slots=True)
class Trial:
    """Asks skforge and the library the same, and counts what becomes of it."""

    folder: Path
    wrong: list[str] = field(default_factory=list)
    #: Where a comparison spoke: what a VerificationWarning or an error said.
    spoke: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    equal: int = 0

    @contextmanager
    def listening(self, what: str) -> Iterator[None]:
        """Note warnings of comparisons, and end the trial if skforge refuses."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except VerificationError as error:
                self.spoke.append(f"{what}: {error}")
                raise EndOfTrialError from error
            except SkforgeError as error:
                self.refused.append(f"{what}: {type(error).__name__}: {error}")
                raise EndOfTrialError from error
            finally:
                self.spoke += [
                    f"{what}: {warning.message}"
                    for warning in caught
                    if issubclass(warning.category, VerificationWarning)
                ]

    def fit(self, model: Any, X: Any) -> Any:
        with self.listening("fit"):
            return CompiledForest(model, tuning="off").fit(X)

    def load(self, fast: Any) -> Any:
        path = self.folder / "model.skforge"
        with self.listening("save"):
            skforge.save(fast, path)
        with self.listening("load"):
            return skforge.load(path)

    def ask(
        self, what: str, answer: Callable[[], Any], expected: Callable[[], Any]
    ) -> None:
        """Compare an answer with the library's; errors of one must be the other's."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wanted, error = expected(), None
            except Exception as raised:  # noqa: BLE001 - of any library
                wanted, error = None, raised
        try:
            with self.listening(what):
                found = answer()
        except EndOfTrialError:
            return
        except Exception as raised:  # noqa: BLE001 - of any library
            if error is None:
                self.refused.append(f"{what}: {type(raised).__name__}: {raised}")
            return
        if error is not None:
            self.wrong.append(f"{what}: an answer, where the library raises {error!r}")
        elif why := difference(found, wanted):
            self.wrong.append(f"{what}: {why}")
        else:
            self.equal += 1

    def method(self, fast: Any, model: Any, X: Any, name: str = "predict") -> None:
        """Ask a method for rows that both take."""
        what = f"{name} of {type(X).__name__}"
        self.ask(what, lambda: getattr(fast, name)(X), lambda: getattr(model, name)(X))

    def both(
        self, fast: Any, model: Any, first: Any, X: Any, name: str = "predict"
    ) -> None:
        """Ask a method for harmless rows, and then for those that may matter."""
        self.method(fast, model, first, name)
        self.method(fast, model, X, name)

    def command(self, what: str, model: Path, rows: Path, expected: Any) -> None:
        """Compare what ``skforge predict`` writes; exit code 3 is a comparison's."""
        output = self.folder / "output.npy"
        output.unlink(missing_ok=True)
        code, said = run_command("predict", model, rows, "--output", output)
        if "differ" in said and (code or "Warning" in said):
            self.spoke.append(f"{what}: {said}")
        if code:
            self.refused.append(f"{what}: exit {code}: {said}")
            return
        self.ask(what, lambda: np.load(output), expected)


def run_command(*words: Any) -> tuple[int, str]:
    """Run ``skforge`` in this process, so that it has the fault; return what it said.

    The code is as shells get it.
    """
    import io
    from contextlib import redirect_stderr, redirect_stdout

    from skforge.cli.main import app

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            app([*map(str, words)], prog_name="skforge")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, " ".join(out.getvalue().split())


def python(folder: Path, text: str) -> np.ndarray:
    """Run a program beside an unpacked wheel; return the array ``answer``."""
    program = f"import numpy as np\n{text}\nnp.save('answer.npy', answer)\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    if done.returncode:
        raise RuntimeError(done.stderr.splitlines()[-1] if done.stderr else "no words")
    answer: np.ndarray = np.load(folder / "answer.npy", allow_pickle=True)
    return answer


def difference(found: Any, wanted: Any) -> str:
    """Return how two answers differ, in bits, dtype, shape or memory order; or ""."""
    both = [
        answer
        if isinstance(answer, list) or hasattr(answer, "tocsr")
        else np.asarray(answer)
        for answer in (found, wanted)
    ]
    return apart((both[0], "", []), (both[1], "", []), None)


Scenario = Callable[[Trial], None]


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str  # what a reader, an adapter or an answer does wrong
    #: Where a note or the changelog names it, or "" for a relative of these.
    named: str
    edits: Sequence[Edit]
    scenario: Scenario


#: One of each door and kind of value.
FAULTS: dict[str, Fault] = {}


def fault(name: str, kind: str, *edits: str, named: str = "") -> Any:
    """Register a scenario with edits: of each, its place, and the old and new text."""

    def register(scenario: Scenario) -> Scenario:
        assert name not in FAULTS, name
        triples = zip(edits[::3], edits[1::3], edits[2::3], strict=True)
        FAULTS[name] = Fault(name, kind, named, [Edit(*e) for e in triples], scenario)
        return scenario

    return register


# ------------------------------------------------------------ rows and models


def numbers(n: int = 240, width: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, width))


def beside(fast: Any, width: int = 3, n: int = 64, dtype: Any = np.float64) -> Any:
    """Return rows at the forest's thresholds, and one step beside them."""
    forest = fast.forest_
    random = np.random.default_rng(7)
    rows = np.zeros((n, width))
    for feature in range(width):
        cuts = forest.threshold[forest.feature == feature]
        cuts = cuts[np.isfinite(cuts)]
        if len(cuts):
            at = cuts[random.integers(0, len(cuts), n)].astype(dtype)
            way = np.array([-np.inf, np.inf], dtype)[random.integers(0, 2, n)]
            near = np.nextafter(at, way)
            rows[:, feature] = np.where(random.random(n) < 0.3, at, near)
    return rows
