"""The host's part of a GPU kernel function, as data.

The emitter turns the host level of an LIR function into a :class:`HostPlan`: integer
arithmetic, transfers, device scratch and launches, with the text of the kernels.
``run`` evaluates the numbers of one call and names its memory: a buffer by its LIR
name, scratch as ``@name``. Numbers that the plan computes are called ``%name``, which
no parameter is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeAlias

from skforge._compat import assert_never
from skforge.compiler.ir.lir import arithmetic
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.arithmetic import wrapped
from skforge.exceptions import CompilerError

Operand: TypeAlias = str | int
Dim3: TypeAlias = tuple[int, int, int]
# Type of a kernel argument: "pointer" or the name of an LIR scalar.
POINTER = "pointer"
#: Most blocks of a launch along x, y and z, on GPUs of both vendors.
GRID_LIMITS = (2**31 - 1, 65535, 65535)
#: Most threads of all blocks along a dimension, on AMD GPUs.
MOST_THREADS = 2**32 - 1


class Argument(NamedTuple):
    """One kernel argument: a number of an LIR scalar type, or a pointer by name."""

    type: str
    value: Any


class KernelCall(NamedTuple):
    """One launch with evaluated numbers."""

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    args: tuple[Argument, ...]


@dataclass(slots=True)
class Run:
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
class HostLet:
    """``name = op(args)`` over integers, wrapped to ``type``."""

    name: str
    type: lir.ScalarName
    op: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """``size`` elements of device memory; iterations of a loop share them."""

    name: str
    element: lir.ScalarName
    size: Operand


@dataclass(frozen=True, slots=True)
class Transfer:
    """``lir.Transfer`` of the elements that ``shape`` counts."""

    kind: lir.TransferKind
    name: str
    element: lir.ScalarName
    shape: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch; ``args`` are names of parameters, numbers and scratch."""

    kernel: str
    grid: tuple[Operand, Operand, Operand]
    block: Dim3
    shared_bytes: int
    args: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Number of threads in a block."""
        x, y, z = self.block
        return x * y * z


@dataclass(frozen=True, slots=True)
class HostFor:
    """A loop around launches; carries integers like ``lir.For``."""

    var: str
    lo: Operand
    hi: Operand
    step: Operand
    body: tuple[HostStmt, ...]
    inits: tuple[Operand, ...] = ()
    params: tuple[str, ...] = ()
    yields: tuple[Operand, ...] = ()
    results: tuple[str, ...] = ()


HostStmt: TypeAlias = HostLet | Scratch | Transfer | Launch | HostFor


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The text of kernels and the plan for running them."""

    source: str  # C++ for NVRTC, hiprtc, or g++ with the ``SKF_*`` macros defined first
    params: tuple[str, ...]  # names of the LIR function's parameters, in order
    statements: tuple[HostStmt, ...]

    def run(self, env: Mapping[str, Any], *, ends_only: bool = False) -> Run:
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
        run = Run()
        _run(self.statements, dict(env), run, 1, ends_only)
        return run

    @property
    def uploads(self) -> tuple[str, ...]:
        """Names of the model's arrays."""
        transfers = (s for s in self.statements if isinstance(s, Transfer))
        return tuple(s.name for s in transfers if s.kind == "upload")

    def launches(self) -> Iterator[Launch]:
        """Yield every launch in the text, in order; each kernel has one."""
        yield from _launches(self.statements)


def _launches(body: Sequence[HostStmt]) -> Iterator[Launch]:
    for stmt in body:
        if isinstance(stmt, Launch):
            yield stmt
        elif isinstance(stmt, HostFor):
            yield from _launches(stmt.body)


def _run(
    body: Sequence[HostStmt], env: dict[str, Any], run: Run, times: int, ends: bool
) -> None:
    """Record the effects of statements, counting each launch ``times`` times."""
    for stmt in body:
        match stmt:
            case HostLet(name=name, args=args):
                env[name] = evaluate(stmt, [_value(env, a) for a in args])
            case Scratch(name=name):
                env[name] = name
                n_bytes = int(_value(env, stmt.size)) * lir.Scalar(stmt.element).bytes
                run.scratch[name] = max(1, n_bytes, run.scratch.get(name, 0))
            case Transfer(name=name, shape=shape):
                if stmt.kind != "upload":
                    count = prod(int(_value(env, extent)) for extent in shape)
                    run.copied[name] = count * lir.Scalar(stmt.element).bytes
            case Launch():
                grid = _grid(stmt, env)
                if grid is not None:
                    named = zip(stmt.types, stmt.args, strict=True)
                    arguments = tuple(Argument(type_, env[a]) for type_, a in named)
                    facts = stmt.kernel, grid, stmt.block, stmt.shared_bytes
                    run.calls.append(KernelCall(*facts, arguments))
                    run.launches += times
            case HostFor():
                _run_loop(stmt, env, run, times, ends)
            case _:
                assert_never(stmt)


def _run_loop(
    stmt: HostFor, env: dict[str, Any], run: Run, times: int, ends: bool
) -> None:
    numbers = range(*(int(_value(env, v)) for v in (stmt.lo, stmt.hi, stmt.step)))
    if ends and not stmt.params and len(numbers) > 1:
        times, numbers = times * -(-len(numbers) // 2), numbers[:: len(numbers) - 1]
    carried = [_value(env, v) for v in stmt.inits]
    for number in numbers:
        env[stmt.var] = number
        env.update(zip(stmt.params, carried, strict=True))
        _run(stmt.body, env, run, times, ends)
        carried = [_value(env, v) for v in stmt.yields]
    env.update(zip(stmt.results, carried, strict=True))


def _value(env: Mapping[str, Any], operand: Operand) -> Any:
    return operand if isinstance(operand, int) else env[operand]


def _grid(stmt: Launch, env: Mapping[str, Any]) -> Dim3 | None:
    """Return the blocks of a launch; None if there are none."""
    x, y, z = (int(_value(env, count)) for count in stmt.grid)
    if x <= 0 or y <= 0 or z <= 0:
        return None
    if any(n > most for n, most in zip((x, y, z), GRID_LIMITS, strict=True)):
        raise CompilerError(
            f"Kernel {stmt.kernel!r} is launched on {x} × {y} × {z} blocks; a grid "
            f"has at most {' × '.join(map(str, GRID_LIMITS))}."
        )
    if any(n * t > MOST_THREADS for n, t in zip((x, y, z), stmt.block, strict=True)):
        raise CompilerError(
            f"Kernel {stmt.kernel!r} is launched on {x} × {y} × {z} blocks of "
            f"{' × '.join(map(str, stmt.block))} threads; AMD's GPUs number at most "
            f"{MOST_THREADS} along a dimension."
        )
    return x, y, z


def evaluate(let: HostLet, args: Sequence[int]) -> int:
    type_ = lir.Scalar(let.type)
    number = arithmetic.evaluate(let.op, type_, *args)
    if number is None:
        raise CompilerError(f"The host does not compute {let.op} of {list(args)}.")
    return wrapped(number, type_)
