"""The command ``doctor``: what skforge finds on this machine, and what it would do."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from skforge._version import DISTRIBUTION, __version__
from skforge.cli.screen import say, screen, show
from skforge.exceptions import TargetError
from skforge.runtime import object_cache

if TYPE_CHECKING:
    from skforge.compiler.target import Target
    from skforge.engine.machine import Measured

#: What the profile's numbers measure; the units are nanoseconds.
WORK = {
    "mux": "bit logic of one node, for a vector of rows",
    "compare": "compare a vector of numbers",
    "permute": "look up a vector of bytes in a register",
    "gather": "load a vector of numbers from different places",
    "scalar": "one simple instruction",
    "line_l1": "read a cache line in order, from L1",
    "line_l2": "... from L2",
    "line_l3": "... from L3 or memory",
    "wait_l1": "load what the load before it points to, from L1",
    "wait_l2": "... from L2",
    "wait_l3": "... from L3 or memory",
}

LIBRARIES = (
    "numpy", "scikit-learn", "xgboost", "xgboost-cpu", "lightgbm", "catboost", "onnx",
    "llvmlite", "joblib", "pandas", "polars", "pyarrow", "cupy-cuda12x", "cupy-cuda13x",
)  # fmt: skip


def doctor(measure: bool = False) -> None:
    """Show what skforge finds on this machine, and where target="auto" runs.

    :param measure: Measure this machine now, and keep its profile.
    """
    from skforge.compiler.target import Target
    from skforge.engine import machine

    host = Target.host()
    profile = (machine.known_profile if measure else machine.machine_profile)(host)
    now = machine.renewed(host, anew=True) if measure else None
    caches = (f"L{k} {getattr(host, f'l{k}_bytes') >> 10:,} KiB" for k in (1, 2, 3))
    facts = {
        "target": str(host),
        "caches": ", ".join(caches),
        "system": f"{platform.system()} {platform.release()}",
        'target="auto"': _auto(),
        **_profile(host, now or machine.USED.get(host)),
    }
    _facts("Machine", facts)
    title = "Profile: nanoseconds that each kind of work takes"
    table = Table("work", title=title, title_justify="left", box=None)
    table.add_column("ns", justify="right")
    if now is not None:
        table.add_column("measured now", justify="right")
    for name, value in asdict(profile).items():
        also = [] if now is None else [f"{getattr(now.profile, name):.2f}"]
        table.add_row(WORK[name], f"{value:.2f}", *also)
    show(screen(), table)
    say("")
    _facts("Cache", _cache())
    versions = {"Python": platform.python_version(), "skforge": __version__}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    _facts("Libraries", versions)
    if stranger := _stranger():
        say(f"\n{stranger}", "yellow")


def _stranger() -> str:
    try:
        other = metadata.distribution("skforge")
    except metadata.PackageNotFoundError:
        return ""
    facts = f"{other.version}: {other.metadata['Summary']}"
    return (
        f"Another project's distribution, skforge ({facts}), is installed, too. Both "
        "have a package skforge, so one has overwritten files of the other: pip "
        f"uninstall skforge {DISTRIBUTION}, then install {DISTRIBUTION} as before."
    )


def _profile(host: Target, measured: Measured | None) -> dict[str, str]:
    from skforge.compiler.cost.profile import MachineProfile
    from skforge.engine import machine

    file = machine.kept_in(host)
    if MachineProfile.is_stored(host):
        return {"profile": "stored with skforge, measured on this kind of CPU"}
    if file is None and MachineProfile.is_modelled(host):
        return {"profile": "stored with skforge, modelled and not measured"}
    if file is None or measured is None:
        why = "as this one is unknown and there is no cache"
        return {"profile": f"that of a common CPU, {why}"}
    load = "" if measured.load is None else f", load average {measured.load:.1f}"
    facts = {
        "profile": f"measured on this machine, in {file}",
        "measured": f"{_at(measured.when)}, with {measured.share:.0%} of a core{load}",
    }
    if measured.doubts:
        why = "; ".join(measured.doubts)
        facts["doubtful"] = f"{why}; measured again from {_at(measured.again)} on"
    return facts


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _cache() -> dict[str, str]:
    folder = object_cache.directory()
    if folder is None:
        return {"folder": "none: SKFORGE_CACHE is off"}
    anew = "; the folder is read-only, so that every process compiles new kernels anew"
    anew = "" if object_cache.is_writable() else anew
    opened = [
        object_cache.opened(kind, create=False) for kind in ("objects", "kernels")
    ]
    if not any(opened):
        usable = not os.path.exists(folder) or object_cache.opened("", create=False)
        note = f"none yet{anew}"
        note = note if usable else "not used: other users could write here"
        return {"folder": folder, "kernels": note}
    entries = chain.from_iterable(map(os.scandir, filter(None, opened)))
    sizes = []
    for entry in entries:
        with suppress(FileNotFoundError):  # another process has removed it
            sizes += [entry.stat().st_size] if entry.is_file() else []
    held = f"{len(sizes):,} files, {sum(sizes) / 1e6:.1f} MB"
    return {"folder": folder, "kernels": held + anew}


def _facts(title: str, facts: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    show(screen(), table)
    say("")


def _auto() -> str:
    from skforge.compiler.backend import device_here

    try:
        gpu = device_here()
    except TargetError as error:
        return f"the CPU ({error})"
    return "the CPU" if gpu is None else f"the CPU, and {gpu} for large batches"
