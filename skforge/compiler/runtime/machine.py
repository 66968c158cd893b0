"""The profile of this machine: stored with the package, or measured and kept.

A measured profile is kept in the cache, with the load under which it was measured. If
other work ran meanwhile, or a number is far from the modelled one, it is doubtful, and
measured again some minutes later, until a measurement agrees with it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path

from skforge._version import __version__
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.runtime.microkernels import far_off, measure
from skforge.compiler.target import Target
from skforge.runtime import object_cache

#: Share of a core below which other work ran, too; seconds until a doubtful profile is
#: measured again, and any other; folder of the cache, and the format of its files.
SHARE, SOON, LATER = 0.8, 600.0, 30 * 86400.0
KIND, _FORMAT = "machines", "profile 2"


@dataclass(frozen=True, slots=True)
class Measured:
    profile: MachineProfile
    when: float  # the last time, in seconds since 1970
    load: float | None  # average of the last minute, where the system has one
    share: float  # CPU time, as a share of the time that measuring took
    doubts: tuple[str, ...]  # why it is measured again soon

    @property
    def again(self) -> float:
        """When it is measured again, in seconds since 1970."""
        return self.when + (SOON if self.doubts else LATER)

    @property
    def counts(self) -> bool:
        return self.when <= time.time() < self.again

    def beside(self, old: Measured) -> Measured:
        """Return what is kept of this measurement and an older one.

        If both agree, the older numbers stay, so that schedules do not change. If this
        one is doubtful, the lesser numbers count, because other work only adds time.
        """
        if self.profile.near(old.profile):
            return replace(self, profile=old.profile, doubts=())
        pairs = zip(astuple(self.profile), astuple(old.profile), strict=True)
        least = MachineProfile(*map(min, pairs))
        return replace(self, profile=least) if self.doubts else self


#: The profiles that this process uses.
USED: dict[Target, Measured] = {}


def machine_profile(target: Target) -> MachineProfile:
    """Return the profile of a CPU: stored, or measured (0.1 s) and then cached.

    A stored one lets all processes choose the same schedules. Without a cache, or for
    another machine, the modelled profile of the CPU stands in, or that of a common one:
    measured beats modelled.
    """
    used = USED.get(target)
    if used is None or not used.counts:
        here = not MachineProfile.is_stored(target) and target == Target.host()
        if not here or kept_in(target) is None:
            return MachineProfile.of(target)
        used = from_cache(target)
        if used is None or not used.counts:
            used = renewed(target)
        USED[target] = used
    return used.profile


def known_profile(target: Target) -> MachineProfile:
    """Return the profile of a CPU without measuring: stored, kept or modelled."""
    stored = MachineProfile.is_stored(target)
    used = None if stored else USED.get(target) or from_cache(target)
    return MachineProfile.of(target) if used is None else used.profile


def kept_in(target: Target) -> Path | None:
    folder = object_cache.opened(KIND, create=True)
    return None if folder is None else Path(folder, _key(target))


def from_cache(target: Target) -> Measured | None:
    content = object_cache.read(_key(target), KIND)
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        facts = json.loads(b"" if content is None else content.tobytes())
        profile, doubts = MachineProfile(**facts.pop("profile")), facts.pop("doubts")
        return Measured(profile, doubts=tuple(doubts), **facts)
    return None


def renewed(target: Target, anew: bool = False) -> Measured:
    """Measure this machine, and keep the profile unless samples disagree.

    Missing numbers are then those of the kept or the modelled profile. With ``anew``, a
    kept profile does not count.
    """
    begin, cpu = time.perf_counter(), time.thread_time()
    numbers = measure(target)
    share = (time.thread_time() - cpu) / (time.perf_counter() - begin)
    far = far_off(numbers, target).items()
    doubts = [f"{name} is {ratio:.2g} times the modelled number" for name, ratio in far]
    if share < SHARE:
        doubts.append(f"other work had {1 - share:.0%} of the core")
    load = load_average()
    if is_busy(target):
        doubts.append(f"the load average was {load:.1f} on {target.n_cores} cores")
    missing = [f.name for f in fields(MachineProfile) if f.name not in numbers]
    if missing:
        doubts.append(f"samples of {', '.join(missing)} disagree")
    old = None if anew else from_cache(target)
    if old is not None and old.counts:
        return old  # another process has measured meanwhile
    others = MachineProfile.of(target) if old is None else old.profile
    profile = replace(others, **numbers).settled(target)
    fresh = Measured(profile, time.time(), load, share, tuple(doubts))
    if not missing:
        fresh = fresh if old is None else fresh.beside(old)
        object_cache.write(_key(target), KIND, [json.dumps(asdict(fresh)).encode()])
    return fresh


def load_average() -> float | None:
    with suppress(AttributeError, OSError):  # Windows does not know
        return os.getloadavg()[0]
    return None


def is_busy(target: Target) -> bool:
    load = load_average()
    return load is not None and load > 1 + target.n_cores / 2


def _key(target: Target) -> str:
    return object_cache.key_of((_FORMAT, __version__, target.to_json()))
