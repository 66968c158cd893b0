"""Compare the releases that results were measured with to the newest ones.

    python -m benchmarks.fresh            # fails if a peer has moved
    python -m benchmarks.fresh --record   # writes the dates of releases

The newest release is the last one on the package index that this Python takes: no
pre-release, not yanked. ``results/releases.json`` has the dates of all releases that
pages name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any
from urllib.request import Request, urlopen

import harness
import typer
from machine import PEERS, RELEASES
from packaging import utils
from packaging.specifiers import SpecifierSet
from packaging.version import Version

INDEX = "https://pypi.org/simple"
TYPE = "application/vnd.pypi.simple.v1+json"
RESULTS = RELEASES.parent


@cache
def releases(name: str) -> dict[Version, tuple[str, bool]]:
    """Return the releases of a package: the day of the first file, and if it runs."""
    request = Request(
        f"{INDEX}/{utils.canonicalize_name(name)}/", headers={"Accept": TYPE}
    )
    with urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    found: dict[Version, tuple[str, bool]] = {}
    for file in files:
        version = _version(file["filename"])
        if version is None or file.get("yanked"):
            continue
        wanted = SpecifierSet(file.get("requires-python") or "")
        runs = wanted.contains(".".join(map(str, sys.version_info[:3])))
        day = file.get("upload-time", "")[:10]
        first, before = found.get(version, (day, False))
        found[version] = min(first, day), runs or before
    return found


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return utils.parse_wheel_filename(filename)[1]
        return utils.parse_sdist_filename(filename)[1]
    except (utils.InvalidWheelFilename, utils.InvalidSdistFilename):
        return None


def newest(name: str) -> Version | None:
    """Return the newest release that this Python takes."""
    runs = (v for v, (_, runs) in releases(name).items() if runs)
    return max((v for v in runs if not v.is_prerelease), default=None)


def measured() -> Iterator[tuple[str, str, str]]:
    """Yield each page of results, and each package and version it was measured with."""
    for file in sorted(RESULTS.glob("*.json")):
        if file == RELEASES:
            continue
        document: Any = json.loads(file.read_text())
        facts = document.get("facts", {}) if isinstance(document, dict) else {}
        for name, version in facts.get("packages", {}).items():
            yield file.stem, name, version


def record() -> None:
    known = json.loads(RELEASES.read_text()) if RELEASES.exists() else {}
    for _, name, version in measured():
        day = releases(name).get(Version(version), ("", False))[0]
        if day:
            known.setdefault(name, {})[version] = day
    text = json.dumps(known, indent=1, sort_keys=True)
    RELEASES.write_text(text + "\n")


def main(
    write: Annotated[
        bool, typer.Option("--record", help="Write dates; compare nothing.")
    ] = False,
) -> None:
    """Print which results have older releases of peers; fail if there are any."""
    if write:
        record()
        return
    pages: dict[tuple[str, str], list[str]] = {}
    for page, name, version in measured():
        pages.setdefault((name, version), []).append(page)
    moved = []
    for name in PEERS:
        last = newest(name)
        for (package, version), where in sorted(pages.items()):
            if package == name and last is not None and Version(version) < last:
                day = releases(name)[last][0]
                moved.append([name, version, f"{last} ({day})", ", ".join(where)])
    print("\n".join(harness.table(["package", "measured", "newest", "pages"], moved)))
    if moved:
        names = ", ".join(dict.fromkeys(name for name, *_ in moved))
        raise SystemExit(f"Measure again: {names}.")


if __name__ == "__main__":
    typer.run(main)
