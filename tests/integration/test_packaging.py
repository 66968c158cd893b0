"""What the package says of itself holds: extras, versions, files of the sdist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import skforge
from skforge._version import DISTRIBUTION
from skforge.cli import doctor
from skforge.gpu.runtime import compilers, cupy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def texts() -> dict[Path, str]:
    """Return what users read: modules with their messages, and pages."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files += (ROOT / "skforge").rglob("*.py")
    return {file: file.read_text(encoding="utf-8") for file in files}


def test_extras_that_are_named_exist():
    named = {
        (file.name, extra)
        for file, text in texts().items()
        for names in re.findall(r"install (?:-e )?['\"]\.\[([a-z0-9, ]+)\]", text)
        for extra in re.split(r", *", names)
    }
    assert len(named) > 5
    known = set(PROJECT["optional-dependencies"])
    assert [(file, extra) for file, extra in named if extra not in known] == []


#: A requirement of skforge, and what pip would fetch from an index. ``skforge`` is
#: another project there, and ours is on none: clones and wheels have ``.`` or ``@``.
FROM_AN_INDEX = (
    r"\bskforge(?:[-_]compiler)?(?:\[[\w, ]*\])?\s*(?:[=!~]=|[<>]=?\s*[\d{])",
    r"\binstall(?: -\S+)* [\\'\"]*skforge(?!-compiler as before)",
)


def strings(code: str) -> str:
    """Return a module's texts, with their parts joined."""
    nodes = ast.walk(ast.parse(code.replace("{DISTRIBUTION}", DISTRIBUTION)))
    kinds = (ast.Constant, ast.JoinedStr)
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, kinds))


def test_nobody_is_told_to_install_skforge_from_an_index():
    def found(text):
        return [m[0] for pattern in FROM_AN_INDEX for m in re.finditer(pattern, text)]

    for wrong in (
        "skforge=={skforge.__version__}",
        "skforge-compiler[dask] >= 1",
        "install 'skforge-compiler[plot]'",
        strings("f'pip install -U ' f'\\'{DISTRIBUTION}[{extra}]\\''"),
    ):
        assert found(wrong), wrong
    said = re.compile("install|DISTRIBUTION")
    told = {
        file: found(
            strings(text) if file.suffix == ".py" and said.search(text) else text
        )
        for file, text in texts().items()
    }
    assert {file: names for file, names in told.items() if names} == {}


def test_packages_that_messages_name_are_those_of_the_extras():
    extras = PROJECT["optional-dependencies"]
    wanted = "\n".join(line for lines in extras.values() for line in lines)
    known = set(re.findall(r"^[-\w]+", wanted, re.MULTILINE))
    messages = "\n".join([*cupy._INSTALL.values(), *compilers._MISSING.values()])
    told = set(re.findall(r"(?:cupy|nvidia)-[-\w]*", messages))
    assert len(told) == 5 and told <= known


def test_links_of_the_wheel_get_the_address_of_the_repository(monkeypatch):
    hook = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", hook)
    monkeypatch.syspath_prepend(ROOT)
    description = import_module("hatch_build").Description()
    description.root, description.config = ROOT, {"repository": "https://a.org/b"}
    made = {}
    description.update(made)
    text = made["readme"]["text"]
    assert "](https://a.org/b/blob/HEAD/docs/models.md)" in text
    assert "](https://a.org/b/raw/HEAD/benchmarks/results/speed.svg)" in text
    assert not re.search(r"\]\((?!https://a\.org/b/(blob|raw)/HEAD/\w)", text)
    description.config = {}
    description.update(made)
    assert made["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")


def test_doctor_names_a_stranger_with_the_name_of_the_import(tmp_path, monkeypatch):
    folder = tmp_path / "skforge-1.0.0.dist-info"
    folder.mkdir()
    facts = "Metadata-Version: 2.1\nName: skforge\nVersion: 1.0.0\nSummary: Calendars\n"
    (folder / "METADATA").write_text(facts)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    text = doctor._stranger()
    assert "skforge (1.0.0: Calendars)" in text
    assert "pip uninstall skforge skforge-compiler, then install" in text
    monkeypatch.setattr(sys, "path", [])
    assert doctor._stranger() == ""


def test_versions_of_python_are_the_same_everywhere():
    minors = re.findall(r'"3\.(\d+)"', (ROOT / "noxfile.py").read_text("utf-8"))
    classified = re.findall(r":: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))
    assert minors == classified
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{minors[0]}"


def test_pytest_collects_without_what_test_does_not_install(tmp_path):
    """As CONTRIBUTING says: ``pip install -e '.[test]'`` and ``pytest``."""
    missing = ("pyspark", "dask", "distributed", "ray")
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n"
    )
    tests = (ROOT / "tests" / "outside").glob("test_distributed*.py")
    paths = [ROOT / "skforge" / "distributed", *sorted(tests)]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *map(str, paths)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert "skforge/distributed/_artifact.py" in found.stdout
    assert "error" not in found.stdout.lower()


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {skforge.__version__}\n" in text
    assert f"\nlicense: {PROJECT['license']}\n" in text
    assert PROJECT["description"] in text


def test_the_license_is_the_one_that_is_named():
    (file,) = PROJECT["license-files"]
    heading = (ROOT / file).read_text(encoding="utf-8").split("\n")[1:3]
    assert heading[0].strip() == "Apache License"
    assert heading[1].strip() == "Version 2.0, January 2004"
    assert PROJECT["license"] == "Apache-2.0"


def test_the_sdist_has_every_file_that_git_tracks():
    asked = ["git", "-C", str(ROOT), "ls-files"]
    listed = subprocess.run(asked, capture_output=True, text=True)
    if listed.returncode or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    # hatchling adds this one by itself
    roots = {name.lstrip("/") for name in included} | {"pyproject.toml"}
    tracked = {name.partition("/")[0] for name in listed.stdout.split()}
    assert sorted(tracked ^ roots) == []
