"""CONTRIBUTING.md names files that exist, and commands that work."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

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
