"""Checks of the package as users install it, with every Python that is found.

``nox`` runs all of them, ``nox -l`` lists them, ``nox -s tests-3.13 -- tests/unit``
runs chosen tests. Interpreters are looked for on PATH and among pyenv's versions; those
that are not found are skipped, and named.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

#: What can differ by Python and by the libraries found for it: entries made of
#: functions of CPython, frontends, estimators, artifacts, types, the command line.
FAST = (
    "tests/test_import_light.py",
    "tests/test_layers.py",
    "tests/unit/test_cli.py",
    "tests/unit/test_container.py",
    "tests/unit/test_frontend_catboost.py",
    "tests/unit/test_frontend_lightgbm.py",
    "tests/unit/test_frontend_onnx.py",
    "tests/unit/test_frontend_sklearn.py",
    "tests/unit/test_frontend_xgboost.py",
    "tests/unit/test_schedule.py",
    "tests/integration/test_artifacts.py",
    "tests/integration/test_cli.py",
    "tests/integration/test_entry.py",
    "tests/integration/test_estimator.py",
    "tests/integration/test_frontend_catboost.py",
    "tests/integration/test_frontend_onnx.py",
    "tests/integration/test_frontend_xgboost.py",
    "tests/integration/test_sklearn_checks.py",
    "tests/outside/test_typing.py",
)

#: Where ``package`` leaves what it built for the others.
DIST = Path(__file__).parent / ".nox" / "dist"

#: The main job of README's first command.
DEMO = ("skforge", "demo")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["package", "extras", "wheel", "oldest", "tests"]

for folder in sorted(Path.home().glob(".pyenv/versions/*/bin")):
    os.environ["PATH"] += os.pathsep + str(folder)


@nox.session
def package(session: nox.Session) -> None:
    """Build sdist and wheel, and check what is in them and what they say."""
    session.install("build", "twine", "check-wheel-contents", "validate-pyproject[all]")
    session.install("cffconvert", "setuptools<81")  # it imports pkg_resources
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(DIST), silent=True)
    session.run("twine", "check", "--strict", str(built("gz")), str(built("whl")))
    session.run("check-wheel-contents", str(built("whl")))
    check_files(session)
    check_address(session)
    session.run("validate-pyproject", "pyproject.toml")
    session.run("cffconvert", "--validate")


@nox.session(python=PYTHONS, requires=["package"])
def wheel(session: nox.Session) -> None:
    """Install the wheel with nothing but XGBoost; demo and types in an empty folder."""
    session.install(f"skforge-compiler[xgboost] @ {built('whl').as_uri()}")
    programs = Path("tests/data/typing").absolute()
    session.chdir(session.create_tmp())
    session.run(*DEMO)
    session.run("python", str(programs / "right.py"))
    session.install("mypy>=1.18")
    for program in sorted(programs.glob("*.py")):
        session.run("mypy", "--strict", "--config-file=", str(program))


@nox.session(python=PYTHONS, requires=["package"])
def oldest(session: nox.Session) -> None:
    """Compare all kinds of models with the oldest versions the extras allow."""
    if session.venv_backend != "uv":
        session.skip("needs uv, which can resolve to the oldest versions")
    extras = [f"--extra={name}" for name in ("xgboost", "lightgbm", "onnx")]
    session.install(
        *("--resolution=lowest-direct", "--only-binary=:all:"),
        *("-r", "pyproject.toml", *extras),
    )
    session.install("--no-deps", str(built("whl")))
    session.chdir(session.create_tmp())
    session.run(*DEMO)
    session.run("python", str(Path(__file__).parent / "tests/reliability/smoke.py"))


@nox.session(python=PYTHONS, requires=["package"])
def tests(session: nox.Session) -> None:
    """Run the fast tests, or those named, from the sdist with newest dependencies."""
    sdist = built("gz")
    session.install(f"skforge-compiler[test] @ {built('whl').as_uri()}")
    models = Path(os.environ.get("SKFORGE_MODELS", "../shared/models")).absolute()
    session.chdir(session.create_tmp())
    with tarfile.open(sdist) as archive:
        archive.extractall()
    session.chdir(sdist.name.removesuffix(".tar.gz"))
    chosen = session.posargs or ["-q", *FAST]
    session.run("python", "-m", "pytest", *chosen, env={"SKFORGE_MODELS": str(models)})


@nox.session(python=PYTHONS[-2])
def newest(session: nox.Session) -> None:
    """Run the fast tests and three benchmarks beside the newest release of each peer.

    XGBoost's newest releases need Python 3.12. The last step fails if results that are
    stored were measured with an older release of a peer.
    """
    session.install("-e", ".[test,bench]")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or FAST))
    session.run("python", "benchmarks/table.py", "--quick", "--threads", "1")
    session.run("python", "-m", "benchmarks.fresh")


@nox.session(python=PYTHONS[-2])
def survival(session: nox.Session) -> None:
    """Test beside scikit-survival, whose releases take one release of scikit-learn."""
    session.install("-e", ".[test]", "scikit-survival")
    tests = session.posargs or ["tests/integration/test_answers_of_leaves.py"]
    session.run("python", "-m", "pytest", "-q", *tests)


@nox.session(python=PYTHONS)
def extras(session: nox.Session) -> None:
    """Resolve each extra by itself, without installing what is found."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    session.install("uv")
    failed = []
    for extra in project["optional-dependencies"]:
        found = session.run(
            *("uv", "pip", "compile", "-q", "--no-header", "--no-annotate"),
            *("--python", session.python, "--extra", extra, "pyproject.toml"),
            silent=True,
            success_codes=[0, 1],
        )
        lines = str(found).splitlines()
        if all("==" in line for line in lines):
            session.log(f"{extra}: {len(lines)} packages")
        else:
            session.warn(f"{extra}: {found}")
            failed.append(extra)
    if failed:
        session.error(f"cannot be installed with {session.python}: {', '.join(failed)}")


@nox.session(requires=["package"])
def sbom(session: nox.Session) -> None:
    """List what the wheel installs with an extra (xgboost), as a bill of materials."""
    extras = ",".join(session.posargs or ["xgboost"])
    session.install("cyclonedx-bom", "pip")
    empty = Path(session.create_tmp()) / "sbom"
    session.run("python", "-m", "venv", "--clear", "--without-pip", str(empty))
    (python,) = (*empty.glob("bin/python"), *empty.glob("Scripts/python.exe"))
    wheel = f"skforge-compiler[{extras}] @ {built('whl').as_uri()}"
    session.run("python", "-m", "pip", "-q", "--python", str(python), "install", wheel)
    file = DIST / "skforge.cdx.json"
    session.run("cyclonedx-py", "environment", str(python), "-o", str(file))


def built(suffix: str) -> Path:
    """Return the file that ``package`` has built."""
    (file,) = DIST.glob(f"*.{suffix}")
    return file


def check_address(session: nox.Session) -> None:
    """Say when links of the wheel's description lead nowhere."""
    hatch = nox.project.load_toml("pyproject.toml")["tool"]["hatch"]
    if not hatch["metadata"]["hooks"]["custom"]["repository"]:
        session.warn(
            "repository is unset in pyproject.toml: README's links do not work on the "
            "page of the package index"
        )


def check_files(session: nox.Session) -> None:
    """Compare what was built with what git tracks."""
    listed = session.run("git", "ls-files", external=True, silent=True)
    tracked = set(str(listed).split())
    with tarfile.open(built("gz")) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(built("whl")) as archive:
        wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [n for n in archive.namelist() if n.endswith("/licenses/LICENSE")]
    package = {name for name in tracked if name.startswith("skforge/")}
    for kind, missing in (
        ("sdist", (tracked | {"PKG-INFO"}) ^ sdist),
        ("wheel", package ^ wheel),
    ):
        if missing:
            session.error(f"{kind} and git differ by {', '.join(sorted(missing))}")
    if not licenses or "skforge/py.typed" not in wheel or "LICENSE" not in sdist:
        session.error("the licence or py.typed is missing")
