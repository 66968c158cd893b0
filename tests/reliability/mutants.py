"""Plant small faults in the code one at a time, and see which ring of tests fails.

    python -m tests.reliability mutants                    # 40 faults: hours
    python -m tests.reliability mutants --list             # only which faults these are
    python -m tests.reliability mutants --rings core --only compiler/cost/counts

Faults are drawn by a seed from the text of ``skforge/`` (``code_faults.py``): the same
seed draws the same ones from the same text. They are planted in a copy of the tree, in
a temporary folder, and tests and their processes import that copy. A ring first runs
the files of tests that name the module, what imports it, or its folder, and those of
the whole, then the others (not with ``--named``), and ends with the first test that
fails, or crashes pytest. A test that does so without the fault, too, does not count,
and is not asked again.

A fault that no ring finds may change nothing: its place and its text tell.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import parts
from tests.reliability.code_faults import CodeFault, drawn, faults_of
from tests.reliability.processes import ONE_THREAD, ROOT, environment

#: What each ring adds to those before it: folders, and files of ``tests/`` itself.
RINGS: dict[str, tuple[str, ...]] = {
    "core": ("tests/unit", "tests/core"),
    "full": ("tests/exactness", "tests/integration", "tests/test_*.py", "skforge"),
    "outside": ("tests/outside",),
}

#: Folders whose results are machine code or run it, which core does not.
MACHINE_CODE = (
    "skforge/compiler/codegen",
    "skforge/compiler/layouts",
    "skforge/compiler/lowering",
    "skforge/compiler/passes/lir",
    "skforge/engine",
    "skforge/gpu",
)

#: Files of tests that name a module and are run before the others.
MOST_FIRST = 12

#: Tests of the whole, which may fail for any module.
WHOLE = "tests/core/", "tests/unit/test_answers_by_reference.py"

_NOT_COPIED = ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "_build"
#: pytest's statuses if all passed, and if there was none to run.
_PASSED, _NONE = 0, 5
#: What it says, by its status, of a fault that keeps it from starting.
_NO_START = {3: "pytest_sessionstart", 4: "while loading conftest"}
#: What a fault does to pytest, and not to a test.
_OTHERS = "hangs", "does not start"


class NotRunError(Exception):
    """pytest ended, but by no test."""


@dataclass
class Outcome:
    fault: CodeFault
    #: The ring that found it, or "" for none.
    ring: str = ""
    #: The test that failed first; "hangs" if the tests had no end.
    test: str = ""
    seconds: float = 0.0


@dataclass
class Copy:
    """A copy of the tree, in which faults are planted and tests run."""

    root: Path
    #: Seconds after which tests that do not end count as failed.
    hang: float
    #: Tests that fail without a fault.
    broken: list[str] = field(default_factory=list)
    #: Tests that pass without a fault.
    sound: set[str] = field(default_factory=set)
    #: The texts of skforge's modules, by path.
    modules: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ignored = shutil.ignore_patterns(*_NOT_COPIED)
        shutil.copytree(ROOT, self.root, ignore=ignored, symlinks=True)
        for file in sorted((self.root / "skforge").rglob("*.py")):
            path = file.relative_to(self.root).as_posix()
            self.modules[path] = file.read_text("utf-8")
        #: The time that the next planted text has: one that is planted within the same
        #: second must not be taken for the compiled text before it.
        self._at = time.time()

    @contextmanager
    def planted(self, fault: CodeFault) -> Iterator[None]:
        file = self.root / fault.path
        self._write(file, fault.planted)
        try:
            yield
        finally:
            self._write(file, fault.text)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text, encoding="utf-8", newline="")
        self._at += 2
        os.utime(file, (self._at, self._at))

    def failing(self, *arguments: str) -> str:
        """Return the first test that fails, or what else happens; "" if all pass."""
        failures, running = self.root / "failures.txt", self.root / "running.txt"
        failures.unlink(missing_ok=True)
        running.unlink(missing_ok=True)
        temporary = self.root / "temporary"
        temporary.mkdir()
        plugin = "tests.reliability.first_failure"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", "-p", plugin]
        command += [f"--deselect={name}" for name in self.broken]
        with (self.root / "output.txt").open("w+") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self.root,
                env=self._environment(failures, running, temporary),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(self.hang)
            except subprocess.TimeoutExpired:
                return _OTHERS[0]
            finally:
                _end(process)
                shutil.rmtree(temporary, ignore_errors=True)
            if failures.exists():
                return failures.read_text(encoding="utf-8").splitlines()[0]
            if status not in (_PASSED, _NONE):
                if running.exists():  # this test crashed pytest
                    return running.read_text(encoding="utf-8")
                output.seek(0)
                text = output.read()
                if status < 0 or (status in _NO_START and _NO_START[status] in text):
                    return _OTHERS[1]
                raise NotRunError(f"pytest ended with {status}: {text[-2000:]}")
        return ""

    def _environment(
        self, failures: Path, running: Path, temporary: Path
    ) -> dict[str, str]:
        models = os.environ.get("SKFORGE_MODELS") or ROOT.parent / "shared" / "models"
        return environment(
            {
                "PYTHONPATH": str(self.root),
                # examples of random tests are the same ones each time
                "CI": "1",
                "SKFORGE_MODELS": str(Path(models).resolve()),
                # a cache would know what was compiled with another fault
                "SKFORGE_CACHE_DIR": None,
                "PYTEST_XDIST_WORKER": None,  # which would be taken for its own
                "SKFORGE_FAILURES": str(failures),
                "SKFORGE_RUNNING": str(running),
                "TMPDIR": str(temporary),
                **ONE_THREAD,
            }
        )

    def sound_without_fault(self, test: str) -> bool:
        if test not in self.sound:
            if self.failing("-p", "no:xdist", test):
                self.broken.append(test)
                return False
            self.sound.add(test)
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_files(root: Path, ring: str) -> dict[str, str]:
    """Return the files of a ring and their texts; some are modules with doctests."""
    found = set[Path]()
    for pattern in RINGS[ring]:
        if pattern.endswith(".py"):
            found.update(root.glob(pattern))
        else:
            doctests = pattern == "skforge"
            found.update((root / pattern).rglob("*.py" if doctests else "test_*.py"))
    paths = {file.relative_to(root).as_posix(): file for file in sorted(found)}
    texts = {path: file.read_text("utf-8") for path, file in paths.items()}
    tests = {path: text for path, text in texts.items() if "test_" in path}
    return tests | {path: text for path, text in texts.items() if ">>> " in text}


def _names(path: str) -> re.Pattern[str]:
    """Return what finds imports and other names of a module in a text."""
    parent, _, stem = _dotted(path).rpartition(".")
    folder = re.escape(parent)
    imported = rf"from {folder} import (?:\([^)]*|.*)\b{stem}\b"
    return re.compile(rf"\b{folder}\.{stem}\b|{imported}")


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def named_first(
    path: str, tests: dict[str, str], modules: dict[str, str] | None = None
) -> list[str]:
    """Return the tests that name a module, then what imports it, then its folder.

    >>> tests = {
    ...     "test_a.py": "import skforge.rows.grid",
    ...     "test_b.py": "from skforge.rows import lines, grid",
    ...     "test_c.py": "from skforge.rows.lines import line",
    ...     "test_d.py": "from skforge.maps import street",
    ...     "test_e.py": "import skforge",
    ...     "test_rows.py": "import skforge",
    ... }
    >>> modules = {"skforge/maps.py": "from skforge.rows.grid import cells"}
    >>> named_first("skforge/rows/grid.py", tests, modules)
    ['test_a.py', 'test_b.py', 'test_rows.py', 'test_d.py', 'test_c.py']
    """
    parent, _, stem = _dotted(path).rpartition(".")
    names, folder = _names(path), re.compile(rf"\b{re.escape(parent)}\b")
    importers = [
        _names(name)
        for name, text in (modules or {}).items()
        if name != path and names.search(text)
    ]
    ranks: dict[str, tuple[int, int]] = {}
    for name, text in tests.items():
        if name == path or names.search(text):
            ranks[name] = (0, -len(names.findall(text)))
        elif stem.strip("_") in name.rpartition("/")[2]:
            ranks[name] = (1, 0)
        elif f"_{parent.rpartition('.')[2]}" in name.rpartition("/")[2]:
            ranks[name] = (2, 0)
        elif count := sum(importer.search(text) is not None for importer in importers):
            ranks[name] = (3, -count)
        elif found := folder.findall(text):
            ranks[name] = (4, -len(found))
    return sorted(ranks, key=lambda name: (ranks[name], name))


@dataclass(frozen=True)
class How:
    """How rings are run."""

    rings: Sequence[str]
    processes: int
    #: Only the files that are run first.
    named: bool


def found_by(copy: Copy, fault: CodeFault, ring: str, how: How) -> str:
    """Return the test of a ring that a fault fails, or what else; "" for none."""
    tests = test_files(copy.root, ring)
    named = named_first(fault.path, tests, copy.modules)[:MOST_FIRST]
    whole = [name for name in tests if name.startswith(WHOLE) and name not in named]
    first = [*named, *whole]
    rest = [] if how.named else [name for name in tests if name not in first]
    spread = ["-n", str(how.processes), "--dist", "worksteal"]
    for files, options in ((first, ["-p", "no:xdist"]), (rest, spread)):
        while files:
            with copy.planted(fault):
                test = copy.failing(*options, *files)
            if not test:
                break
            if test in _OTHERS or copy.sound_without_fault(test):
                return test
    return ""


def tried(copy: Copy, fault: CodeFault, how: How) -> Outcome:
    outcome, start = Outcome(fault), time.monotonic()
    for ring in how.rings:
        if test := found_by(copy, fault, ring, how):
            outcome.ring, outcome.test = ring, test
            break
    outcome.seconds = time.monotonic() - start
    return outcome


def line_of(outcome: Outcome) -> str:
    fault, ring = outcome.fault, outcome.ring or "none"
    place = f"{fault.path}:{fault.place.line}"
    end = outcome.test or changed(fault)
    return f"{ring:8} {outcome.seconds:5.0f} s  {fault.place.kind:10} {place}  {end}"


def changed(fault: CodeFault) -> str:
    """Return what a fault changes, in one line."""
    before, after = (" ".join(text.split()) for text in (fault.old, fault.place.new))
    return f"{before}  ->  {after}"


def summary(outcomes: Sequence[Outcome], rings: Sequence[str]) -> str:
    """Return how many faults each ring found; a ring counts those before it."""
    columns = [*rings, "none"]
    lines = [f"{'':34}{'faults':>8}" + "".join(f"{name:>9}" for name in columns)]

    def row(name: str, of: Sequence[Outcome]) -> None:
        counts = [
            sum(o.ring in rings[: i + 1] for o in of if o.ring)
            for i in range(len(rings))
        ]
        counts.append(sum(not o.ring for o in of))
        cells = "".join(f"{count:>9}" for count in counts)
        lines.append(f"{name:34}{len(of):>8}{cells}")

    for kind in sorted({o.fault.place.kind for o in outcomes}):
        row(kind, [o for o in outcomes if o.fault.place.kind == kind])
    lines.append("")
    for folder in sorted({o.fault.folder for o in outcomes}):
        row(folder, [o for o in outcomes if o.fault.folder == folder])
    lines.append("")
    by_part = {True: "with machine code", False: "without machine code"}
    for compiled, name in by_part.items():
        row(name, [o for o in outcomes if makes_code(o.fault.folder) == compiled])
    row("all", outcomes)
    return "\n".join(lines)


def makes_code(folder: str) -> bool:
    return any(f"{folder}/".startswith(f"{name}/") for name in MACHINE_CODE)


def chosen(count: int, seed: int, only: str) -> list[CodeFault]:
    faults = drawn(faults_of(ROOT, "skforge"), count, seed)
    wanted = [f"skforge/{name.removesuffix('.py')}.py" for name in parts(only)]
    paths = [fault.path for fault in faults]
    if unknown := [name for name in wanted if name not in paths]:
        raise typer.BadParameter(f"no fault was drawn in {unknown[0]}.")
    return [fault for fault in faults if not wanted or fault.path in wanted]


def main(
    count: Annotated[int, typer.Option(help="Faults, at most one a file.")] = 40,
    seed: Annotated[int, typer.Option(help="Which faults are drawn.")] = 0,
    only: Annotated[
        str, typer.Option(help="Of these, those in files such as cli/run, by commas.")
    ] = "",
    rings: Annotated[str, typer.Option(help=f"Of {', '.join(RINGS)}.")] = "core,full",
    processes: Annotated[int, typer.Option(help="Processes of tests.")] = 2,
    named: Annotated[
        bool, typer.Option("--named", help="Only files that name the module: minutes.")
    ] = False,
    hang: Annotated[float, typer.Option(help="Seconds that tests may take.")] = 3600,
    listed: Annotated[
        bool, typer.Option("--list", help="Only say which faults these are.")
    ] = False,
) -> None:
    """Plant small faults in the code, and count which ring of tests finds them."""
    wanted = parts(rings)
    if unknown := [name for name in wanted if name not in RINGS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(RINGS)}.")
    faults = chosen(count, seed, only)
    if listed:
        for fault in faults:
            place = f"{fault.path}:{fault.place.line}"
            print(f"{fault.place.kind:10} {place}  {changed(fault)}")
        return
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="skforge-mutants-") as folder:
        copy = Copy(Path(folder) / "tree", hang)
        for fault in faults:
            outcomes.append(tried(copy, fault, How(wanted, processes, named)))
            print(line_of(outcomes[-1]), flush=True)
    print("\nNo ring found:")
    for outcome in outcomes:
        if not outcome.ring:
            print(line_of(outcome))
    if copy.broken:
        print("\nThese fail without a fault:", *copy.broken, sep="\n")
    print("\n" + summary(outcomes, wanted))
