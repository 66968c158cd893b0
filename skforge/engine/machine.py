"""The profile of this machine: stored with the package, or measured and kept.

A measured profile is kept in the cache, with the load under which it was measured. If
other work ran meanwhile, or a number is far from the modelled one, it is doubtful, and
measured again some minutes later, until a measurement agrees with it.

Small kernels measure a CPU: each repeats one kind of work of the real ones. They are
written in LIR and compiled as every kernel, so they consist of the instructions that
forests take on the target.

Other processes only add time, so the least sample counts if another one agrees with it.
Samples are short and take turns, so that a slow moment meets few of each kernel. One
that ends too early runs longer from then on, so none is short after an interruption.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TypeAlias

import numpy as np

from skforge._typing import Int64s
from skforge._version import __version__
from skforge.compiler.cost.profile import MachineProfile, agree
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import F32, I64, U8, U16, Buffer, Value, Vec
from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.jit import compile_functions
from skforge.engine.kernels import aligned
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
        measurable = not MachineProfile.is_stored(target) and target == Target.host()
        if not measurable or kept_in(target) is None:
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
        keep(target, fresh)
    return fresh


def keep(target: Target, measured: Measured) -> None:
    text = json.dumps(asdict(measured))
    object_cache.write(_key(target), KIND, [text.encode()])


def load_average() -> float | None:
    with suppress(AttributeError, OSError):  # Windows does not know
        return os.getloadavg()[0]
    return None


def is_busy(target: Target) -> bool:
    load = load_average()
    return load is not None and load > 1 + target.n_cores / 2


def _key(target: Target) -> str:
    return object_cache.key_of((_FORMAT, __version__, target.to_json()))


# ------------------------------------------------------------ small kernels

Clock: TypeAlias = Callable[[], float]

#: Takes a number of turns, and returns their seconds.
Microkernel: TypeAlias = Callable[[int], float]
#: By name, with the least turns of a sample, and the units of work of a turn.
Works: TypeAlias = dict[str, tuple[Microkernel, int, int]]

#: Least seconds of a sample, and the largest step of a clock for them.
SAMPLE, STEP = 4e-5, 4e-6

#: Largest ratio of samples that agree: those at one frequency of the CPU. So many of
#: them are enough, and two after some seconds of CPU time, or of any time.
SAME, ENOUGH, MOST_CPU, MOST_SECONDS = 1.1, 8, 0.06, 1.0

#: Ratio to the modelled number from which a number is doubtful.
FAR = 3.0

#: The best clock first: CPU time leaves out other processes, but some systems count it
#: in steps of 10 ms.
CLOCKS: tuple[Clock, ...] = (time.thread_time, time.perf_counter)

#: Independent vectors of a turn, enough to hide the latency of an instruction.
UNROLLED = 8

#: Bytes of a cache line, and those that every kernel keeps in L1.
LINE, NEAR = 64, 4096

#: Most bytes read to measure L3 or memory, and the part of them that walks meet.
MOST_FAR, PART = 8 << 20, 8

_DATA, _OUT = Buffer("data", I64), Buffer("out", I64)
_NUMBERS = Buffer("numbers", F32)
_TURNS, _SIZE = Value("turns", I64), Value("size", I64)

#: As the prototype of ``MachineCode``, but the lock of the interpreter is held.
_HOLDING = ctypes.PYFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)

_Turn = Callable[[Value, list[Value]], list[Value]]


def _repeat(vec: Vec | None, turn: _Turn) -> None:
    """Carry vectors through all turns, and store them, so that no work is dead."""
    places = [b.const(k * (vec.lanes if vec else 1)) for k in range(UNROLLED)]
    carried = [b.load(_DATA, index, vec) for index in places]
    with b.loop(_TURNS, carry=carried) as i:
        carried[:] = turn(i, carried)
    for index, value in zip(places, carried, strict=True):
        _OUT[index] = value


def _mux(target: Target) -> None:
    """Fold nodes of trees: a line where a plane is set, another where it is not."""
    vec = Vec(I64, target.lanes(64))
    plane = _DATA[0, vec]

    def turn(i: Value, vectors: list[Value]) -> list[Value]:
        folded = []
        for k, vector in enumerate(vectors):
            other = _DATA[k * vec.lanes, vec]
            folded.append(other ^ plane & (vector ^ other))
        return folded

    _repeat(vec, turn)


def _compare(target: Target) -> None:
    vec = Vec(F32, target.lanes(32))
    bits = {4: U8, 8: U8, 16: U16}[vec.lanes]
    with b.loop(_TURNS) as i:
        limit = b.splat(i.to(F32), vec.lanes)
        for k in range(UNROLLED):
            x = _NUMBERS[k * vec.lanes, vec]
            answers = b.mask_bits(x >= limit, bits)
            _OUT[k] = answers.to(I64)


def _permute(target: Target) -> None:
    vec = Vec(I64, target.lanes(64))
    whole = Vec(U8, 8 * vec.lanes)
    table = b.reinterpret(_DATA[0, vec], whole)

    def turn(i: Value, vectors: list[Value]) -> list[Value]:
        bytes_ = [b.reinterpret(vector, whole) for vector in vectors]
        return [b.reinterpret(b.permute([table], vector), vec) for vector in bytes_]

    _repeat(vec, turn)


def _gather(target: Target) -> None:
    vec = Vec(I64, target.lanes(64))

    def turn(i: Value, vectors: list[Value]) -> list[Value]:
        near = b.const(NEAR // 8 - 1, vec)
        return [_DATA[one & near] for one in vectors]

    _repeat(vec, turn)


def _scalar(target: Target) -> None:
    _repeat(None, lambda i, numbers: [one + i ^ i for one in numbers])


def _stream(target: Target) -> None:
    vec = Vec(I64, target.lanes(64))
    step = LINE // 8

    def turn(i: Value, vectors: list[Value]) -> list[Value]:
        sums = list(vectors)
        with b.loop(0, _SIZE, 2 * step, carry=sums) as first:
            for k in range(0, 2 * step, vec.lanes):
                read = _DATA[first + k, vec]
                slot = k // vec.lanes % UNROLLED
                sums[slot] = sums[slot] + read
        return sums

    _repeat(vec, turn)


def _chase(target: Target) -> None:
    cursor = [_DATA[0]]
    with b.loop(_TURNS, carry=cursor):
        cursor[0] = _DATA[cursor[0]]
    _OUT[0] = cursor[0]


#: By name: ``_mux`` writes the kernel "mux".
_WRITE: dict[str, Callable[[Target], None]] = {
    write.__name__[1:]: write
    for write in (_mux, _compare, _permute, _gather, _scalar, _stream, _chase)
}

#: Kernels of work in registers and L1, and how often a turn does what they measure.
WORK = {"mux": UNROLLED, "compare": UNROLLED, "permute": UNROLLED, "gather": UNROLLED,
         "scalar": 2 * UNROLLED}  # fmt: skip


def functions(target: Target) -> dict[str, lir.Function]:
    params = (_DATA, _NUMBERS, _OUT, _TURNS, _SIZE)
    kernels = {}
    has = {"permute": target.permuted_bytes > 0, "gather": target.has_gather}
    for name, write in _WRITE.items():
        if not has.get(name, True):
            continue
        with Builder() as kernel:
            write(target)
        kernels[name] = lir.Function(f"skforge_measure_{name}", params, kernel.finish())
    return kernels


def measure(target: Target) -> dict[str, float]:
    """Return the nanoseconds of each kind of work on this machine, by name.

    They are the numbers of ``MachineProfile``, without those that samples disagree on.
    One that is not the modelled one at this machine's speed is measured twice: in one
    of 100 processes, comparisons took 2.8 times as long throughout.
    """
    clock = fine_clock()
    if clock is None:
        return {}
    numbers = least_times(works_of(target, clock))
    modelled = MachineProfile.of(target)
    _, odd = replace(modelled, **numbers).beside(modelled)
    works = works_of(target, clock) if odd else {}  # in other memory
    again = least_times({name: works[name] for name in odd if name in numbers})
    pairs = {name: (value, again.get(name, value)) for name, value in numbers.items()}
    sound = {name: min(pair) for name, pair in pairs.items() if agree(*pair)}
    return without_kernels(sound, target)


def far_off(measured: dict[str, float], target: Target) -> dict[str, float]:
    modelled = asdict(MachineProfile.of(target))
    ratios = {name: value / modelled[name] for name, value in measured.items()}
    return {n: ratio for n, ratio in ratios.items() if not 1 / FAR <= ratio <= FAR}


def fine_clock() -> Clock | None:
    fine = (clock for clock in CLOCKS if min(_step(clock) for _ in range(3)) <= STEP)
    return next(fine, None)


def _step(clock: Clock) -> float:
    start = clock()
    while (now := clock()) == start:
        pass
    return now - start


def works_of(target: Target, clock: Clock) -> Works:
    kernels = functions(target)
    module = compile_functions([*kernels.values()], target)
    random = np.random.default_rng(0)
    works: Works = {}
    for name, units in WORK.items():
        if name in kernels:
            data = random.integers(0, 1 << 62, NEAR // 8, np.int64)
            works[name] = _timed(module, name, data, clock), 1, units
    for level, size in _sizes(target).items():
        lines, far = size // LINE, level == "l3"
        stream = _timed(module, "stream", _cycle(lines, lines, random), clock)
        # Fewer lines would stay in the cache below. Those of L3 have just come from it,
        # for other processes may have all of L3 at other times.
        walked, before = (lines // PART, stream) if far else (lines, None)
        data = _cycle(lines, walked, random)
        chase = _timed(module, "chase", data, clock, walked, before)
        works[f"line_{level}"] = stream, 1, lines
        works[f"wait_{level}"] = chase, walked, 1
    return works


def least_times(works: Works) -> dict[str, float]:
    turns = {name: least for name, (_, least, _) in works.items()}
    samples: dict[str, list[float]] = {name: [] for name in works}
    cpu, end = time.thread_time() + MOST_CPU, time.perf_counter() + MOST_SECONDS
    while None in (_least(taken, ENOUGH) for taken in samples.values()):
        if time.thread_time() > cpu or time.perf_counter() > end:
            break
        for name, taken in samples.items():
            while (seconds := works[name][0](turns[name])) < SAMPLE:
                turns[name] *= 4
                taken.clear()
            taken.append(seconds / turns[name])
    lows = {name: _least(taken, 2) for name, taken in samples.items()}
    return {n: 1e9 * low / works[n][2] for n, low in lows.items() if low is not None}


def _least(samples: list[float], n: int) -> float | None:
    """Return the least sample that agrees with the next one, if ``n`` agree."""
    pairs = pairwise(sorted(samples))
    low = next((sample for sample, other in pairs if other <= SAME * sample), inf)
    return low if sum(low <= sample <= SAME * low for sample in samples) >= n else None


def without_kernels(measured: dict[str, float], target: Target) -> dict[str, float]:
    """Add the work that a target has no instruction for, as other work does it."""
    numbers = dict(measured)
    if not target.has_gather and "scalar" in measured:
        numbers["gather"] = target.lanes(64) * measured["scalar"]
    like = "gather" if target.has_gather else "compare"
    if not target.permuted_bytes and like in measured:
        numbers["permute"] = numbers[like]
    return numbers


def _sizes(target: Target) -> dict[str, int]:
    l1, l2 = target.l1_bytes, target.l2_bytes
    return {"l1": l1 // 2, "l2": min(l2 // 2, 8 * l1), "l3": min(4 * l2, MOST_FAR)}


def _cycle(lines: int, walked: int, random: np.random.Generator) -> Int64s:
    order = np.append(0, 1 + random.permutation(lines - 1)[: walked - 1]) * (LINE // 8)
    data = np.zeros(lines * (LINE // 8), np.int64)
    data[order] = np.roll(order, -1)
    return data


def _timed(
    module: MachineCode,
    name: str,
    data: Int64s,
    clock: Clock,
    least: int = 1,
    before: Microkernel | None = None,
) -> Microkernel:
    """Return a kernel to time on data in the cache, or that ``before`` has taken there.

    Calls hold the lock of the interpreter: threads that want it would count as time.
    """
    run = _HOLDING(module.address(f"skforge_measure_{name}"))
    arrays = data, np.zeros(NEAR, np.float32), np.zeros(NEAR, np.int64)
    owned = module, [aligned(array) for array in arrays]  # as long as the kernel

    def seconds(turns: int) -> float:
        laps, turns = (turns // least, least) if before else (1, turns)
        bases = [array.ctypes.data for array in owned[1]]
        first, slots = (struct.pack("5q", *bases, n, len(data)) for n in (least, turns))
        taken = 0.0
        for _ in range(laps):
            run(first, None, 1)
            if before is not None:
                before(1)
            begin = clock()
            run(slots, None, 1)
            taken += clock() - begin
        return taken

    return seconds
