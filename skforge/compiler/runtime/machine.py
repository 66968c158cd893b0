"""The profile of this machine: stored with the package, or measured once and kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from skforge._version import __version__
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.runtime import object_cache
from skforge.compiler.runtime.microkernels import measure
from skforge.compiler.target import Target

_KIND = "machines"


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
    if kept_in(target) is None:
        return MachineProfile.of(target)
    found = _kept(target)
    if found is None:
        found = MachineProfile(**measure(target))
        text = json.dumps(asdict(found))
        object_cache.write(_key(target), _KIND, [text.encode()])
    return found


def known_profile(target: Target) -> MachineProfile:
    """Return the profile of a CPU without measuring: stored, kept or modelled."""
    found = None if MachineProfile.is_stored(target) else _kept(target)
    return MachineProfile.of(target) if found is None else found


def kept_in(target: Target) -> Path | None:
    """Return the file that keeps a measured profile, or None without a cache."""
    folder = object_cache.opened(_KIND, create=True)
    return None if folder is None else folder / _key(target)


def _kept(target: Target) -> MachineProfile | None:
    content = object_cache.read(_key(target), _KIND)
    try:
        held = json.loads(b"" if content is None else content.tobytes())
        found = MachineProfile(**{name: float(value) for name, value in held.items()})
    except (ValueError, TypeError, AttributeError):
        return None
    usable = all(0 < value < 1e6 for value in asdict(found).values())
    return found if usable else None


def _key(target: Target) -> str:
    return object_cache.key_of((__version__, target.to_json()))
