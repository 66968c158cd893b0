"""Small kernels that measure a CPU: each repeats one kind of work of the real ones.

They are written in LIR and compiled as every kernel, so they consist of the
instructions that forests take on the target.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, I64, U8, U16, Buffer, Value, Vec
from skforge.compiler.runtime.cpu.jit import JitModule, compile_functions
from skforge.compiler.target import Target

#: Independent vectors of a turn, enough to hide the latency of an instruction.
UNROLLED = 8

#: Seconds of a sample, and samples. The least counts: all else is disturbance.
SAMPLE_SECONDS, SAMPLES = 3e-4, 5

#: Bytes of a cache line, and those that every kernel keeps in L1.
LINE, NEAR = 64, 4096

#: Most bytes read to measure L3 or memory.
MOST_FAR = 8 << 20

_DATA, _OUT = Buffer("data", I64), Buffer("out", I64)
_NUMBERS = Buffer("numbers", F32)
_TURNS, _SIZE = Value("turns", I64), Value("size", I64)

_Carried = Callable[[Value, tuple[Value, ...]], list[Value]]


def _repeat(b: Builder, vec: Vec, turn: _Carried) -> None:
    """Carry vectors through all turns, and store them, so that no work is dead."""
    inits = [b.load(_DATA, b.const(k * vec.lanes), vec) for k in range(UNROLLED)]
    made = b.for_(b.const(0), _TURNS, b.const(1), turn, inits)
    for k, value in enumerate(made):
        b.store(_OUT, b.const(k * vec.lanes), value)


def _mux(b: Builder, target: Target) -> None:
    """Fold nodes of trees: a line where a plane is set, another where it is not."""
    vec = Vec(I64, target.lanes(64))
    plane = b.load(_DATA, b.const(0), vec)

    def turn(i: Value, held: tuple[Value, ...]) -> list[Value]:
        made = []
        for k, one in enumerate(held):
            other = b.load(_DATA, b.const(k * vec.lanes), vec)
            differ = b.binary("and", plane, b.binary("xor", one, other))
            made.append(b.binary("xor", other, differ))
        return made

    _repeat(b, vec, turn)


def _compare(b: Builder, target: Target) -> None:
    """Compare vectors of numbers with one, and store the answers as bits."""
    vec = Vec(F32, target.lanes(32))
    bits = {4: U8, 8: U8, 16: U16}[vec.lanes]
    with b.loop(_TURNS) as i:
        limit = b.splat(b.convert(i, F32), vec.lanes)
        for k in range(UNROLLED):
            x = b.load(_NUMBERS, b.const(k * vec.lanes), vec)
            found = b.mask_bits(b.compare("ge", x, limit), bits)
            b.store(_OUT, b.const(k), b.convert(found, I64))


def _permute(b: Builder, target: Target) -> None:
    """Look up bytes in a register."""
    vec = Vec(I64, target.lanes(64))
    whole = Vec(U8, 8 * vec.lanes)
    table = b.reinterpret(b.load(_DATA, b.const(0), vec), whole)

    def turn(i: Value, held: tuple[Value, ...]) -> list[Value]:
        bytes_ = [b.reinterpret(one, whole) for one in held]
        return [b.reinterpret(b.permute([table], one), vec) for one in bytes_]

    _repeat(b, vec, turn)


def _gather(b: Builder, target: Target) -> None:
    """Load numbers from a place for each lane; all are in L1."""
    vec = Vec(I64, target.lanes(64))

    def turn(i: Value, held: tuple[Value, ...]) -> list[Value]:
        near = b.const(NEAR // 8 - 1, vec)
        return [b.load(_DATA, b.binary("and", one, near)) for one in held]

    _repeat(b, vec, turn)


def _scalar(b: Builder, target: Target) -> None:
    """Run simple instructions, independent of each other."""

    def turn(i: Value, held: tuple[Value, ...]) -> list[Value]:
        return [b.binary("xor", b.add(one, i), i) for one in held]

    inits = [b.load(_DATA, b.const(k)) for k in range(UNROLLED)]
    made = b.for_(b.const(0), _TURNS, b.const(1), turn, inits)
    for k, value in enumerate(made):
        b.store(_OUT, b.const(k), value)


def _stream(b: Builder, target: Target) -> None:
    """Read ``size`` numbers in order, a cache line at a time."""
    vec = Vec(I64, target.lanes(64))
    step = LINE // 8

    def turn(i: Value, held: tuple[Value, ...]) -> list[Value]:
        def one(at: Value, sums: tuple[Value, ...]) -> list[Value]:
            made = list(sums)
            for k in range(0, 2 * step, vec.lanes):
                read = b.load(_DATA, b.add(at, k), vec)
                slot = k // vec.lanes % UNROLLED
                made[slot] = b.add(made[slot], read)
            return made

        return list(b.for_(b.const(0), _SIZE, b.const(2 * step), one, held))

    _repeat(b, vec, turn)


def _chase(b: Builder, target: Target) -> None:
    """Follow numbers, each of which is the place of the next."""

    def turn(i: Value, held: tuple[Value, ...]) -> list[Value]:
        return [b.load(_DATA, held[0])]

    (end,) = b.for_(b.const(0), _TURNS, b.const(1), turn, [b.load(_DATA, b.const(0))])
    b.store(_OUT, b.const(0), end)


_WRITE: dict[str, Callable[[Builder, Target], None]] = {
    "mux": _mux,
    "compare": _compare,
    "permute": _permute,
    "gather": _gather,
    "scalar": _scalar,
    "stream": _stream,
    "chase": _chase,
}

#: Kernels of work in registers and L1, and how often a turn does what they measure.
WORK = {"mux": UNROLLED, "compare": UNROLLED, "permute": UNROLLED, "gather": UNROLLED,
         "scalar": 2 * UNROLLED}  # fmt: skip


def functions(target: Target) -> dict[str, lir.Function]:
    """Return the kernels that a target has instructions for, by name."""
    params = (_DATA, _NUMBERS, _OUT, _TURNS, _SIZE)
    made = {}
    for name, write in _WRITE.items():
        if name == "permute" and not target.permute_entries(8):
            continue
        if name == "gather" and not target.has_gather:
            continue
        b = Builder()
        write(b, target)
        made[name] = lir.Function(f"skforge_measure_{name}", params, b.finish())
    return made


def measure(target: Target) -> dict[str, float]:
    """Return the nanoseconds of each kind of work on this machine, by name.

    ``mux``, ``compare``, ``permute`` and ``gather`` are of one vector, ``scalar`` of
    one instruction; ``line_l1`` to ``line_l3`` of a cache line read in order, and
    ``wait_l1`` to ``wait_l3`` of a load that waits for the one before.
    """
    kernels = functions(target)
    module = compile_functions([*kernels.values()], target)
    random = np.random.default_rng(0)
    found = {
        name: _seconds(module, name, _near(random)) / count * 1e9
        for name, count in WORK.items()
        if name in kernels
    }
    found = without_kernels(found, target)
    for level, size in _sizes(target).items():
        data = _cycle(size // LINE, random)
        lines = len(data) // (LINE // 8)
        found[f"line_{level}"] = _seconds(module, "stream", data) / lines * 1e9
        found[f"wait_{level}"] = _seconds(module, "chase", data) * 1e9
    return found


def without_kernels(found: dict[str, float], target: Target) -> dict[str, float]:
    """Add the work that a target has no instruction for, as other work does it."""
    gather = found.get("gather", target.lanes(64) * found["scalar"])
    permute = found["gather" if "gather" in found else "compare"]
    return {"permute": permute, "gather": gather, **found}


def _sizes(target: Target) -> dict[str, int]:
    """Return how much is read to measure each level of the cache."""
    l1, l2 = target.l1_bytes, target.l2_bytes
    return {"l1": l1 // 2, "l2": min(l2 // 2, 8 * l1), "l3": min(4 * l2, MOST_FAR)}


def _near(random: np.random.Generator) -> NDArray[np.int64]:
    return random.integers(0, 1 << 62, NEAR // 8, np.int64)


def _cycle(lines: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return numbers that lead through all lines in random order."""
    order = random.permutation(lines) * (LINE // 8)
    data = np.zeros(lines * (LINE // 8), np.int64)
    data[order] = np.roll(order, -1)
    return data


def _seconds(module: JitModule, name: str, data: NDArray[np.int64]) -> float:
    """Return the least seconds of a turn, without those of other processes."""
    run = module.function(f"skforge_measure_{name}")
    numbers, out = np.zeros(NEAR, np.float32), np.zeros(NEAR, np.int64)
    places = [_aligned(one) for one in (data, numbers, out)]

    def taken(turns: int) -> float:
        slots = struct.pack(
            "5q", *(one.ctypes.data for one in places), turns, len(data)
        )
        start = time.thread_time()
        run(slots, None, 1)
        return time.thread_time() - start

    # A walk through all lines: a shorter one would find its own lines in the cache.
    turns = len(data) // (LINE // 8) if name == "chase" else 1
    while (once := taken(turns)) < SAMPLE_SECONDS / 4:
        turns *= 4
    if once < SAMPLE_SECONDS:
        turns = int(turns * SAMPLE_SECONDS / once)
    return min(taken(turns) for _ in range(SAMPLES)) / turns


def _aligned(data: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that starts at a cache line."""
    raw = np.empty(data.nbytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    made = raw[start : start + data.nbytes].view(data.dtype)
    made[:] = data
    return made
