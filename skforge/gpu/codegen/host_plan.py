"""The host's part of a GPU kernel function, with the text of its kernels.

The host level of an LIR function is integer arithmetic, transfers, device scratch,
loops and grids. ``HostPlan.run`` evaluates its numbers for one call, and names memory
as LIR does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeAlias

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import operations
from skforge.compiler.ir.lir.printer import name_of
from skforge.compiler.ir.lir.walk import operands
from skforge.exceptions import CompilerError

Dim3: TypeAlias = tuple[int, int, int]
# Type of a kernel argument that is no LIR scalar.
POINTER = "pointer"
#: Most blocks of a launch along x, y and z, on GPUs of both vendors.
GRID_LIMITS = (2**31 - 1, 65535, 65535)
#: Most threads of all blocks along a dimension, on AMD GPUs.
MOST_THREADS = 2**32 - 1


class Argument(NamedTuple):
    type: str
    value: Any


class KernelCall(NamedTuple):
    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    args: tuple[Argument, ...]


@dataclass(slots=True)
class HostRun:
    """The launches of one call in order, the scratch they need, and what is copied."""

    #: Bytes by name; all iterations of a loop share scratch.
    scratch: dict[str, int] = field(default_factory=dict)
    calls: list[KernelCall] = field(default_factory=list)
    #: Bytes of the rows and the results, by name.
    copied: dict[str, int] = field(default_factory=dict)
    #: Number of launches; exceeds ``len(calls)`` if loops were cut short.
    launches: int = 0

    @property
    def scratch_bytes(self) -> int:
        return sum(self.scratch.values())


@dataclass(frozen=True, slots=True)
class Launch:
    """The kernel of a grid, with what it takes: buffers, then numbers."""

    kernel: str
    block: Dim3
    shared_bytes: int
    args: tuple[lir.Buffer | lir.Value, ...]

    @property
    def threads(self) -> int:
        return prod(self.block)


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The text of kernels and the function whose host level runs them."""

    source: str  # C++ for NVRTC, hiprtc, or g++ with the ``SKF_*`` macros defined first
    function: lir.Function
    #: In the order of the text, by the name of the first variable of each grid.
    launches: Mapping[str, Launch]

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(param.name for param in self.function.params)

    def run(self, env: Mapping[str, Any], *, ends_only: bool = False) -> HostRun:
        """Return the launches and scratch of one call.

        ``env`` has a number for each scalar parameter, and for each buffer the object
        that represents it in ``Argument.value``, such as its name. With ``ends_only``,
        loops that carry no numbers run only their first and last iteration: enough to
        determine the scratch and the number of launches. Raises CompilerError if a grid
        has more blocks than a GPU supports.
        """
        if wrong := set(self.params) ^ set(env):
            raise CompilerError(
                f"The plan takes {list(self.params)}; missing or unknown: "
                f"{sorted(wrong)}."
            )
        call = _LaunchCall(self.launches, env, ends_only)
        call.body(self.function.body, 1)
        return call.run

    @property
    def uploads(self) -> tuple[str, ...]:
        transfers = (s for s in self.function.body if isinstance(s, lir.Transfer))
        return tuple(s.buffer.name for s in transfers if s.kind == "upload")


class _LaunchCall:
    def __init__(
        self, launches: Mapping[str, Launch], env: Mapping[str, Any], ends: bool
    ) -> None:
        self.run = HostRun()
        self._launches, self._ends = launches, ends
        self._numbers, self._memory = dict(env), dict(env)

    def _each(self, *values: lir.Value) -> list[int]:
        return [int(self._numbers[value.name]) for value in values]

    def body(self, body: lir.Body, times: int) -> None:
        run = self.run
        for stmt in body:
            match stmt:
                case lir.Let(value=value, op=op):
                    number = evaluate(value, op, self._each(*operands(op)))
                    self._numbers[value.name] = number
                case lir.Alloc(buffer=buffer, size=size):
                    name = self._memory[buffer.name] = buffer.name
                    n_bytes = self._each(size)[0] * buffer.element.bytes
                    run.scratch[name] = max(1, n_bytes, run.scratch.get(name, 0))
                case lir.Transfer(buffer=buffer, shape=shape):
                    if stmt.kind != "upload":
                        count = prod(self._each(*shape))
                        run.copied[buffer.name] = count * buffer.element.bytes
                case lir.Grid():
                    self._launch(stmt, times)
                case lir.For():
                    self._loop(stmt, times)
                case _:
                    raise AssertionError(stmt)  # the emitter refused others

    def _loop(self, stmt: lir.For, times: int) -> None:
        turns = range(*self._each(stmt.lo, stmt.hi, stmt.step))
        if self._ends and not stmt.params and len(turns) > 1:
            times, turns = times * -(-len(turns) // 2), turns[:: len(turns) - 1]
        carried = self._each(*stmt.inits)
        for turn in turns:
            self._numbers[stmt.var.name] = turn
            self._set(stmt.params, carried)
            self.body(stmt.body, times)
            carried = self._each(*stmt.yields)
        self._set(stmt.results, carried)

    def _set(self, values: Sequence[lir.Value], numbers: Sequence[int]) -> None:
        self._numbers.update(zip([v.name for v in values], numbers, strict=True))

    def _launch(self, grid: lir.Grid, times: int) -> None:
        launch = self._launches[grid.dims[0][1].name]
        counts = {dim: self._each(count)[0] for dim, _, count in grid.dims}
        x, y, z = (counts.get(dim, 1) for dim in ("grid.x", "grid.y", "grid.z"))
        if x <= 0 or y <= 0 or z <= 0:
            return
        _check_grid(launch, (x, y, z))
        args = tuple(
            Argument(POINTER, self._memory[arg.name])
            if isinstance(arg, lir.Buffer)
            else Argument(arg.type.element.name, self._numbers[arg.name])
            for arg in launch.args
        )
        facts = launch.kernel, (x, y, z), launch.block, launch.shared_bytes
        self.run.calls.append(KernelCall(*facts, args))
        self.run.launches += times


def _check_grid(launch: Launch, grid: Dim3) -> None:
    x, y, z = grid
    if any(n > most for n, most in zip(grid, GRID_LIMITS, strict=True)):
        raise CompilerError(
            f"Kernel {launch.kernel!r} is launched on {x} × {y} × {z} blocks; a grid "
            f"has at most {' × '.join(map(str, GRID_LIMITS))}."
        )
    if any(n * t > MOST_THREADS for n, t in zip(grid, launch.block, strict=True)):
        raise CompilerError(
            f"Kernel {launch.kernel!r} is launched on {x} × {y} × {z} blocks of "
            f"{' × '.join(map(str, launch.block))} threads; AMD's GPUs number at most "
            f"{MOST_THREADS} along a dimension."
        )


def evaluate(value: lir.Value, op: lir.Op, args: Sequence[int]) -> int:
    type_ = value.type.element
    if isinstance(op, lir.Const):
        return operations.wrapped(op.value, type_)
    number = operations.evaluate(name_of(op), type_, *args)
    if number is None:
        raise CompilerError(f"The host does not compute {name_of(op)} of {list(args)}.")
    return operations.wrapped(number, type_)
