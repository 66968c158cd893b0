"""CONTRIBUTING.md names files that exist, and commands that work."""

from __future__ import annotations

import importlib.util
import re
import runpy
from importlib import import_module
from inspect import Parameter, cleandoc, getattr_static, isclass, isfunction, signature
from pathlib import Path

import pytest

from skforge import CompiledForest
from skforge._docs import documented
from skforge.distributed import dask, ray, spark
from skforge.modules.compiled import CompiledModule
from skforge.tuning import tune
from tests.test_layers import MODULES, layer, module_name

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

#: What is said in code and looks like a path of the repository.
PATHS = sorted(
    {
        word
        for code in re.findall(r"`([^`\n]+)`", TEXT)
        for word in code.split()
        if re.fullmatch(r"(?!\.\.)[\w.*-]+/[\w./*-]*|[\w-]+\.(?:py|toml|md|cff)", word)
    }
    | set(re.findall(r"\b(?:tests|benchmarks|docs)/[\w/]+\.\w+", TEXT))
)
NEW = "NAME"  # stands for the file that a reader adds


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path):
    if NEW in path:
        assert list(ROOT.glob(path.replace(NEW, "*"))), path
    else:
        assert list(ROOT.glob(path)), path


def test_paths_are_found_in_the_text():
    assert len(PATHS) > 60
    assert {
        "skforge/schedule/directives.py",
        "noxfile.py",
        "tests/golden/",
    } < {*PATHS}


#: The parts of skforge in the table of folders, row by row, as modules.
MAP = [
    module_name(ROOT / path.removesuffix("/"))
    for line in TEXT.partition("## Where")[2].partition("## How")[0].splitlines()
    for path in re.findall(r"`(skforge/[\w/.]+)`", line)
    if line.startswith("| `skforge/")
]


def test_the_map_has_every_module():
    inside = tuple(f"{name}." for name in MAP)
    missing = [
        name
        for name, file in MODULES.items()
        if file.name != "__init__.py"
        and not file.name.startswith("_")
        and name not in MAP
        and not name.startswith(inside)
    ]
    assert missing == [], "add a row to the table of folders in CONTRIBUTING.md"


def test_the_map_goes_down_from_layer_to_layer():
    # the dot: layers of what lies in a folder, not of what the folder hands on
    layers = [layer(f"{name}.") for name in MAP if "skforge.gpu" not in name]
    assert len(layers) > 25
    assert layers == sorted(layers, reverse=True)


def test_entries_of_the_next_release_begin_with_their_subject():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- .*$", text.split("\n## [")[1], re.MULTILINE)
    assert [one for one in entries if not re.match(r"- \*\*.+?\*\*[:.]", one)] == []
    assert [line for line in text.splitlines() if len(line) > 160] == []


def test_decisions_have_dates_and_statuses_as_their_index_says():
    folder = ROOT / "docs" / "decisions"
    said = []
    for page in sorted(folder.glob("0*.md")):
        title, blank, status = page.read_text(encoding="utf-8").splitlines()[:3]
        number, title = title.removeprefix("# ").split(". ", 1)
        date, status = status.strip("*").split(". ", 1)
        status = re.split(r"[.;]", status.lower())[0]
        said.append((number, title, page.name, date, status))
        assert blank == "" and re.fullmatch(r"\d+ [A-Z][a-z]+ \d{4}", date), page.name
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert said == re.findall(
        r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (.+?) \| ([^;|]+?)(?:;.*)? \|$", index, re.M
    )


def test_modules_of_commands_are_there():
    modules = set(re.findall(r"python -m ([\w.]+)", TEXT))
    assert modules >= {"pytest", "ruff", "mypy", "benchmarks.regression"}
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    assert missing == []
    assert "\n    skforge demo\n" in TEXT
    assert '\nskforge = "skforge.__main__:main"\n' in PROJECT


def test_names_in_code_are_names_of_the_code():
    sources = "\n".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "skforge").rglob("*.py")
    )
    for name in (
        *("Mark", "Option", "BY_NAME", "problem", "MIR_PASSES", "LIR_PASSES"),
        *("GPU_LIR_PASSES", "source_of", "HostPlan", "GpuDevice", "TargetKind"),
        *("WalkRepresentation", "BlockRepresentation", "RowRepresentation"),
        *("RowLayout", "WalkLayout", "BlockLayout", "HopLayout", "register"),
    ):
        assert f"`{name}`" in TEXT
        assert re.search(rf"^\s*(?:def |class )?{name}\b", sources, re.MULTILINE), name


# ------------------------------------------------------------ architecture


SCRIPT = Path(__file__).parents[2] / "docs" / "architecture.py"


@pytest.fixture(scope="module")
def architecture():
    return runpy.run_path(str(SCRIPT))


def test_the_picture_is_that_of_the_code(architecture):
    written = SCRIPT.with_suffix(".svg").read_text(encoding="utf-8")
    assert written == architecture["draw"](), "run python docs/architecture.py"


def test_a_new_package_has_to_be_placed(architecture):
    with pytest.raises(SystemExit) as error:
        architecture["part_of"]("skforge.compiler.linkers", package=True)
    assert str(error.value) == (
        "the package skforge.compiler.linkers is in no part: name it in PARTS of "
        "docs/architecture.py and run that"
    )


# ------------------------------------------------------------ documented


def rows(X, *, out=None, n_jobs=None):
    """Return answers.

    More about them.

    Parameters
    ----------
    X : array
        Rows, of
        any kind.
    out, n_jobs : object
        Both.

    Returns
    -------
    array
        One a row.

    Examples
    --------
    >>> 1 + 1
    2
    """


def test_what_lacks_is_added_but_no_examples():
    @documented(rows)
    def one(X, extra, *, out=None):
        """Return one answer.

        Parameters
        ----------
        extra : int
            Its own.

        Returns
        -------
        float
        """

    wanted = """Return one answer.

    Parameters
    ----------
    X : array
        Rows, of
        any kind.
    extra : int
        Its own.
    out, n_jobs : object
        Both.

    Returns
    -------
    float
    """
    assert cleandoc(one.__doc__) == cleandoc(wanted)


def test_the_first_source_counts_and_foreign_parameters_are_left_out():
    def other(X):
        """Say more.

        Parameters
        ----------
        X : list

        Notes
        -----
        Notes.
        """

    @documented(other, rows)
    def two(X):
        """Return two."""

    wanted = """Return two.

    Parameters
    ----------
    X : list

    Returns
    -------
    array
        One a row.

    Notes
    -----
    Notes.
    """
    assert cleandoc(two.__doc__) == cleandoc(wanted)


def test_nothing_is_added_without_docstrings():
    def bare(X):
        pass

    assert documented(rows)(bare).__doc__ is None


OF_ESTIMATORS = (
    "predict_contribs", "warm_up", "inspect", "predict_raw", "apply",
    "predict_per_tree",
)  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        *(getattr_static(CompiledForest, name) for name in OF_ESTIMATORS),
        *(CompiledModule.predict, CompiledModule.apply, tune),
        *(dask.predict, ray.Predictor, spark.predict_udf),
    ],
    ids=lambda function: f"{function.__module__}.{function.__qualname__}",
)
def test_users_find_every_parameter(function):
    parameters = signature(getattr(function, "__wrapped__", function)).parameters
    further = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    names = [p.name for p in parameters.values() if p.kind not in further]
    for name in names[names[0] == "self" :]:
        assert f"\n{name} : " in cleandoc(function.__doc__)


def names_of_the_api_page():
    """Yield each name that docs/api.rst lists, with what it is."""
    module = ""
    for line in (Path(__file__).parents[2] / "docs/api.rst").read_text().splitlines():
        module = line.partition("currentmodule:: ")[2] or module
        if entry := re.fullmatch(r"   ((?:[a-z]+[.])*)(\w+)", line):
            home = import_module(f"{module}.{entry[1]}".strip("."))
            yield f"{home.__name__}.{entry[2]}", getattr(home, entry[2])


def test_everything_on_the_api_page_has_a_docstring():
    found = dict(names_of_the_api_page())
    assert len(found) > 30
    bare = [name for name, thing in found.items() if not thing.__doc__]
    for name, thing in found.items():
        for member, value in vars(thing).items() if isclass(thing) else ():
            value = value.fget if isinstance(value, property) else value
            if isfunction(value) and member[0] != "_" and not value.__doc__:
                bare.append(f"{name}.{member}")
    assert bare == []
