"""Make the environments of peers whose pins conflict with everybody else's.

``python benchmarks/environments.py`` makes all that are not there yet, in the folder
of the benchmarks' cache: lleaves needs Python 3.12 or earlier.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Annotated

import typer
from models import cache_folder

REQUIREMENTS = Path(__file__).with_name("environments")


def python_of(name: str) -> Path | None:
    python = cache_folder() / "environments" / name / "bin" / "python"
    return python if python.exists() else None


def version_in(name: str, package: str) -> str:
    code = f"from importlib import metadata; print(metadata.version({package!r}))"
    command = [str(python_of(name)), "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Environments; default: all.")
    ] = None,
) -> None:
    """Make environments with venv and pip."""
    for file in sorted(REQUIREMENTS.glob("*.txt")):
        name = file.stem
        if names and name not in names:
            continue
        if python_of(name):
            print(f"{name} is there")
            continue
        folder = cache_folder() / "environments" / name
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        versions = _versions_here() if name == "hummingbird" else []
        done = subprocess.run([*pip, "-r", str(file), *versions], check=False)
        if done.returncode:
            (folder / "bin" / "python").unlink()
            sys.exit(f"{name}: pip failed; see above")
        print(f"{name} is made")


def _versions_here() -> list[str]:
    """Pin what reads the pickled models to the versions that wrote them."""
    from importlib import metadata

    packages = ("scikit-learn", "lightgbm", "joblib")
    return [f"{name}=={metadata.version(name)}" for name in packages]


if __name__ == "__main__":
    typer.run(main)
