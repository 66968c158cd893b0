"""The profile of this machine: stored with the package, or measured once and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from skforge._version import __version__
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.runtime import object_cache
from skforge.compiler.runtime.microkernels import measure
from skforge.compiler.target import Target


@lru_cache(maxsize=16)
def machine_profile(target: Target) -> MachineProfile:
    """Return the profile of a CPU.

    A CPU that the package knows is not measured, so that all its processes choose the
    same schedules. Another one, if it is this machine, is measured once (0.1 s) and its
    profile kept in the cache; without a cache, or for another machine, the modelled
    profile of the CPU stands in, or that of a common one: measured beats modelled.
    """
    if MachineProfile.is_stored(target) or target != Target.host():
        return MachineProfile.of(target)
    file = kept_in(target)
    if file is None:
        return MachineProfile.of(target)
    found = _read(file)
    if found is None:
        found = MachineProfile(**measure(target))
        _write(file, found)
    return found


def known_profile(target: Target) -> MachineProfile:
    """Return the profile of a CPU without measuring: stored, kept or modelled."""
    if not MachineProfile.is_stored(target):
        file = kept_in(target)
        found = None if file is None else _read(file)
        if found is not None:
            return found
    return MachineProfile.of(target)


def kept_in(target: Target) -> Path | None:
    """Return the file that keeps a measured profile, or None without a cache."""
    folder = object_cache.opened("machines", create=True)
    if folder is None:
        return None
    key = hashlib.sha256(f"{__version__} {target.to_json()}".encode()).hexdigest()
    return folder / f"{key[:32]}.json"


def _read(file: Path) -> MachineProfile | None:
    try:
        with object_cache.open_own(file, os.O_RDONLY) as stream:
            held = json.load(stream)
        found = MachineProfile(**{name: float(value) for name, value in held.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    usable = all(0 < value < 1e6 for value in asdict(found).values())
    return found if usable else None


def _write(file: Path, profile: MachineProfile) -> None:
    """Keep a profile; a file is whole or not there, whoever else writes it."""
    beside = file.with_name(f".{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with object_cache.open_own(beside, flags) as stream:
            stream.write(json.dumps(asdict(profile)).encode())
        os.replace(beside, file)
