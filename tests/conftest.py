"""Fixtures and options that every test may use."""

from __future__ import annotations

import gc
import inspect
import os
import platform
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
#: Programs that try much; ``test_reliability.py`` runs a few of each.
collect_ignore = ["reliability"]
WRITTEN = pytest.StashKey[list[str]]()
IN_CI = os.environ.get("CI", "") not in ("", "0", "false")

# Machine code that tests make stays out of the user's own cache.
_OBJECTS = tempfile.TemporaryDirectory(prefix="skforge-tests-")
os.environ.setdefault("SKFORGE_CACHE_DIR", _OBJECTS.name)

# Searches take seconds: only tests of searches, which give a budget, make any.
os.environ.setdefault("SKFORGE_TUNING_SECONDS", "0")

# Tests compare answers themselves. What compares them for users takes a quarter of the
# time of full, and lets the model answer where compiled code errs. Modules marked
# ``doors`` are about it, or are what users see.
_CHECK = os.environ.setdefault("SKFORGE_CHECK", "off")

# Threads of OpenMP that wait for work sleep: with a process of tests on every core, as
# by pytest -n auto, those that spin keep the others from working (10 fits of XGBoost in
# each of two such processes on a busy machine of 2 cores: 51 s spinning, .5 s asleep).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Those of OpenBLAS spin whatever it says, and products are small here (nine fits of
# stacks of test_members.py on a busy machine of 2 cores: 11.3 s, by one thread 1.5 s).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Passes make many small objects, and few cycles: a collection for every 10,000 of them
# instead of 700 takes 2 % of the time of test_lanes.py, not 8 %, and of files that are
# about pipelines 1 %, not 1.5 %. Subprocesses have the default.
gc.set_threshold(10_000, 20, 50)

# For each array, scikit-learn lets narwhals ask for attributes that it has not. Python
# 3.12 keeps what this finds: with it, a scaler transforms a frame in .8 of the time.
if sys.version_info < (3, 12):
    inspect._shadowed_dict = lru_cache(inspect._shadowed_dict)

settings.register_profile(
    "skforge",
    deadline=None,  # the first example of a test pays for a compilation
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("skforge"), max_examples=200)
settings.register_profile(
    "ci", settings.get_profile("skforge"), derandomize=True, print_blob=True
)
settings.load_profile("ci" if IN_CI else "skforge")


def pytest_sessionstart() -> None:
    """Let all processes choose schedules by one profile, which nobody measures."""
    from skforge.compiler.target import Target
    from skforge.engine import machine
    from tests.guard import modelled

    machine.SOON = machine.LATER
    if os.environ["SKFORGE_CACHE_DIR"] == _OBJECTS.name:  # not the user's own
        machine.keep(Target.host(), modelled(Target.host()))


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep objects for tests that begin with an empty cache: many compile the same."""
    from skforge.engine.cpu import code, jit
    from skforge.runtime.object_cache import key_of

    compiled = jit.object_of
    own = tmp_path_factory.getbasetemp()  # of the processes of xdist, side by side
    folder = (own.parent if hasattr(request.config, "workerinput") else own) / "objects"
    folder.mkdir(exist_ok=True)

    def object_of(sources: Any, target: Any) -> tuple[list[str], bytes]:
        texts, names = jit._texts(sources, target)
        kept = folder / key_of((*code.code_facts(target), *texts))
        with suppress(OSError):
            return names, kept.read_bytes()
        _, binary = compiled(texts, target)
        with suppress(OSError), tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(binary)
            file.flush()
            os.link(file.name, kept)  # which is whole for whom sees it
        return names, binary

    jit.object_of = object_of


@pytest.fixture(scope="module", autouse=True)
def _doors(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("doors"):
            patch.delenv("SKFORGE_CHECK", raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_test_leaves_doors_open(
    request: pytest.FixtureRequest,
) -> Generator[None, None, None]:
    """Fail the test that changes for others whether answers are compared."""
    wanted = None if request.node.get_closest_marker("doors") else _CHECK
    before = os.environ.get("SKFORGE_CHECK")
    assert before == wanted, "a test before, or a fixture of its module, changed this"
    yield
    assert os.environ.get("SKFORGE_CHECK") == before


@pytest.fixture(scope="session", autouse=True)
def _every_error_of_made_rows() -> None:
    from skforge.prediction import door

    door.UNMADE = ()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden texts anew; such tests then count as skipped",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import other tests first in each process of pytest-xdist, if asked for folders.

    In a new clone each would compile them all at once, for 12 s; now it finds most of
    them compiled by the others.
    """
    worker: dict[str, str] | None = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    asked = {Path(arg).resolve() for arg in session.config.args}
    folders = [path for path in asked if path.is_relative_to(TESTS)]
    files = {file for path in folders for file in path.rglob("test_*.py")}
    at, step = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    for file in sorted(files)[at::step]:
        name = file.relative_to(TESTS.parent).with_suffix("").as_posix()
        with suppress(Exception, pytest.skip.Exception):  # collection says why
            import_module(name.replace("/", "."))


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave most of many cases to the slow run; the fast run does not make them.

    Those of the fast run are taken in steps of the golden section, which is out of step
    with every parameter. Each test starts elsewhere, so that tests with the same
    parameters have different cases. Of a product, those with new values of parameters
    come first.
    """
    calls = metafunc._calls  # no hook sees cases before each is an item
    sampled = metafunc.definition.get_closest_marker("sampled")
    cases = [case for case in calls if not _is_slow(case)]
    if sampled is not None and len(cases) > (most := sampled.args[0]):
        for case in _spread(metafunc.definition.nodeid, cases, most)[most:]:
            case.marks.append(pytest.mark.slow.mark)
    if metafunc.config.option.markexpr == "not slow":
        calls[:] = [case for case in calls if not _is_slow(case)] or calls


def _is_slow(case: Any) -> bool:
    return any(mark.name == "slow" for mark in case.marks)


def _spread(name: str, cases: list[Any], left: int) -> list[Any]:
    """Return cases in an order whose first ones are far from each other."""
    start = zlib.crc32(name.encode())
    places = [(start + i) * 0.618033988749895 % 1 for i in range(len(cases))]
    order = sorted(range(len(cases)), key=places.__getitem__)
    values = [_values(case) for case in cases]
    sizes = [len({*at}) for at in zip(*values, strict=True)]
    if len(sizes) > 1 and max(sizes) < len(cases):  # a product
        order = _new_values_first(order, values, left)
    return [cases[i] for i in order]


def _values(case: Any) -> tuple[tuple[str, int], ...]:
    """Return which value of each parameter a case has (``indices`` count cases)."""
    return tuple((name, id(value)) for name, value in case.params.items())


def _new_values_first(
    order: list[int], values: list[tuple[tuple[str, int], ...]], few: int
) -> list[int]:
    """Return an order whose first few have as many values as such a number can.

    Of cases with as many new values, the one comes first whose values are the rarest.
    """
    first: list[int] = []
    seen: Counter[tuple[str, int]] = Counter()
    rest = [*order]
    while rest and len(first) < few:
        best = max(rest, key=lambda i: _newness(seen[value] for value in values[i]))
        rest.remove(best)
        first.append(best)
        seen.update(values[best])
    return first + rest


def _newness(seen: Iterable[int]) -> tuple[int, int]:
    """Return how many values were not seen, and how rarely the others were."""
    times = [*seen]
    return times.count(0), -sum(times)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collector of garbage from looking at the tests again and again.

    They are 600,000 objects, 0.4 s each time: 6 % of the time of all tests.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Keep pytest and Python from collecting again what pytest just did."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Report a test that wrote golden texts as skipped, once all are written.

    On Arm, so are tests of models that are refused there (``test_rounding.py``).
    """
    try:
        yield
    except Exception as error:
        arm = platform.machine() in ("aarch64", "arm64")
        if arm and str(error).startswith("On Arm, XGBoost"):
            pytest.skip(str(error))
        raise
    if written := item.stash.get(WRITTEN, []):
        pytest.skip(f"wrote {', '.join(written)}; read the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return ``check(text, name)``, which compares with the stored text."""
    update = request.config.getoption("--update-golden")
    test = request.node.name.replace("[", ".").replace("]", "").replace("/", ".")
    folder = TESTS / "golden" / Path(request.path).stem

    def check(actual: str, name: str) -> None:
        file = folder / f"{test}.{name}.txt"
        stored = file.read_text(encoding="utf-8") if file.exists() else None
        if update and actual != stored:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(actual, encoding="utf-8", newline="\n")
            request.node.stash.setdefault(WRITTEN, []).append(file.name)
            return
        assert stored is not None, f"{file.name} is missing; run with --update-golden"
        assert actual == stored

    return check


@pytest.fixture
def restored() -> Generator[None, None, None]:
    """Leave nothing of ``accelerate``: methods, models, nor what the report tells."""
    from skforge.acceleration import api, records

    records.GONE.clear()
    yield
    api.restore()
    records.GONE.clear()


@pytest.fixture
def eager(restored: None) -> None:
    from skforge.acceleration import api
    from tests.accelerated_models import EAGER

    api.start((), EAGER)


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Return the folder of public models, beside the repository or SKFORGE_MODELS."""
    default = TESTS.parent.parent / "shared" / "models"
    folder = Path(os.environ.get("SKFORGE_MODELS") or default)
    if not folder.is_dir():
        pytest.skip(f"no models in {folder}; set SKFORGE_MODELS to their folder")
    return folder
