"""What the host does in one call of a GPU kernel function, as data.

The emitter turns the host level of an LIR function into a :class:`HostPlan`: integer
arithmetic, device scratch and launches, with the text of the kernels. ``run`` walks it
against any :class:`Device`, so that one plan serves CuPy, a CPU that runs the very
text, and tests. A parameter keeps its LIR name; what the plan binds itself is called
``%name`` (a number) or ``@name`` (scratch), which no parameter is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, get_args

from skforge._compat import assert_never
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.arithmetic import binary, compare, unary, wrapped
from skforge.exceptions import CompilerError

Operand: TypeAlias = str | int
# Of a kernel argument: "pointer" or an LIR scalar's name.
POINTER = "pointer"
#: Blocks along x, y and z that a launch takes, on GPUs of both vendors.
GRID_LIMITS = (2**31 - 1, 65535, 65535)
#: Threads of all blocks along a dimension, on AMD's GPUs.
MOST_THREADS = 2**32 - 1


class Needs(NamedTuple):
    """What a run takes: the most scratch at a time, and how many launches at most."""

    scratch_bytes: int
    launches: int


class Argument(NamedTuple):
    """One kernel argument: ``type`` is "pointer" or a scalar's name such as "i64"."""

    type: str
    value: Any


class Device(Protocol):
    """What a plan needs of a device."""

    def allocate(self, n_bytes: int) -> Any:
        """Return scratch that lives as long as what is returned is referred to.

        It starts at a multiple of 16 bytes.
        """
        ...

    def release(self, memory: Any) -> None:
        """Take note that no launch from now on is given this scratch."""
        ...

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        args: Sequence[Argument],
    ) -> None:
        """Start a kernel after everything that was started before."""
        ...


@dataclass(frozen=True, slots=True)
class HostLet:
    """``name = op(args)`` over integers, wrapped to ``type``."""

    name: str
    type: lir.ScalarName
    op: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """``size`` elements of device memory, until the end of the enclosing body."""

    name: str
    element: lir.ScalarName
    size: Operand


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: ``args`` are names of parameters, numbers and scratch."""

    kernel: str
    grid: tuple[Operand, Operand, Operand]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block
        return x * y * z


@dataclass(frozen=True, slots=True)
class HostFor:
    """A loop around launches, with carried integers as ``lir.For`` has them."""

    var: str
    lo: Operand
    hi: Operand
    step: Operand
    body: tuple[HostStmt, ...]
    inits: tuple[Operand, ...] = ()
    params: tuple[str, ...] = ()
    yields: tuple[Operand, ...] = ()
    results: tuple[str, ...] = ()


HostStmt: TypeAlias = HostLet | Scratch | Launch | HostFor


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The text of some kernels and how to run them.

    Parameters
    ----------
    source : str
        C++ for NVRTC, hiprtc, or g++ with the ``SKF_*`` macros defined before it.
    params : tuple of str
        Names of the LIR function's parameters, in order.
    statements : tuple of HostStmt
        What the host does.
    """

    source: str
    params: tuple[str, ...]
    statements: tuple[HostStmt, ...]

    def run(self, device: Device, env: Mapping[str, Any]) -> None:
        """Run on a device.

        Parameters
        ----------
        device : Device
            Where memory is and kernels run.
        env : mapping
            A number for each scalar parameter; for each buffer whatever the device
            takes as a pointer.
        """
        if wrong := set(self.params) ^ set(env):
            raise CompilerError(
                f"The plan takes {list(self.params)}; missing or unknown: "
                f"{sorted(wrong)}."
            )
        _run(self.statements, device, dict(env))

    def needs(self, env: Mapping[str, Any]) -> Needs:
        """Return what a run takes, without running anything.

        Of a loop, the first and the last iteration tell, unless it carries numbers.

        Raises
        ------
        CompilerError
            If a grid has more blocks than a GPU takes.
        """
        return _needs(self.statements, dict(env))

    def launches(self) -> Iterator[Launch]:
        """Return every launch of the text, in order; each kernel has one."""
        yield from _launches(self.statements)


def _launches(body: Sequence[HostStmt]) -> Iterator[Launch]:
    for stmt in body:
        if isinstance(stmt, Launch):
            yield stmt
        elif isinstance(stmt, HostFor):
            yield from _launches(stmt.body)


def _needs(body: Sequence[HostStmt], env: dict[str, Any]) -> Needs:
    own = most = launches = 0
    for stmt in body:
        match stmt:
            case HostLet(name=name, args=args):
                env[name] = evaluate(stmt, [_value(env, a) for a in args])
            case Scratch():
                own += _n_bytes(stmt, env)
                most = max(most, own)
                env[stmt.name] = 0
            case Launch():
                launches += _grid(stmt, env) is not None
            case HostFor():
                numbers = _iterations(stmt, env)
                each = 1  # iterations that one stands for
                if not stmt.params and len(numbers) > 1:
                    each, numbers = -(-len(numbers) // 2), numbers[:: len(numbers) - 1]
                for _ in _turns(stmt, env, numbers):
                    inside = _needs(stmt.body, env)
                    most = max(most, own + inside.scratch_bytes)
                    launches += each * inside.launches
            case _:
                assert_never(stmt)
    return Needs(most, launches)


def _run(body: Sequence[HostStmt], device: Device, env: dict[str, Any]) -> None:
    scratch = []
    for stmt in body:
        match stmt:
            case HostLet(name=name, args=args):
                env[name] = evaluate(stmt, [_value(env, a) for a in args])
            case Scratch(name=name):
                env[name] = device.allocate(_n_bytes(stmt, env))
                scratch.append(name)
            case Launch():
                _launch(stmt, device, env)
            case HostFor():
                for _ in _turns(stmt, env, _iterations(stmt, env)):
                    _run(stmt.body, device, env)
            case _:
                assert_never(stmt)
    for name in scratch:
        device.release(env.pop(name))


def _value(env: Mapping[str, Any], operand: Operand) -> Any:
    return operand if isinstance(operand, int) else env[operand]


def _n_bytes(stmt: Scratch, env: Mapping[str, Any]) -> int:
    return max(1, int(_value(env, stmt.size)) * lir.Scalar(stmt.element).bytes)


def _grid(stmt: Launch, env: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return the blocks of a launch, None if there are none."""
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


def _launch(stmt: Launch, device: Device, env: Mapping[str, Any]) -> None:
    grid = _grid(stmt, env)
    if grid is None:
        return
    args = tuple(
        Argument(type_, env[name])
        for type_, name in zip(stmt.types, stmt.args, strict=True)
    )
    device.launch(stmt.kernel, grid, stmt.block, stmt.shared_bytes, args)


def _iterations(stmt: HostFor, env: Mapping[str, Any]) -> range:
    return range(*(int(_value(env, v)) for v in (stmt.lo, stmt.hi, stmt.step)))


def _turns(
    stmt: HostFor, env: dict[str, Any], numbers: Sequence[int]
) -> Iterator[None]:
    """Bind what a loop binds for each of its iterations, and behind it."""
    carried = [_value(env, v) for v in stmt.inits]
    for number in numbers:
        env[stmt.var] = number
        env.update(zip(stmt.params, carried, strict=True))
        yield
        carried = [_value(env, v) for v in stmt.yields]
    env.update(zip(stmt.results, carried, strict=True))


# ---------------------------------------------------------------- arithmetic


def evaluate(let: HostLet, args: Sequence[int]) -> int:
    """Return what a :class:`HostLet` computes of the numbers it names."""
    op: Any = let.op
    type_ = lir.Scalar(let.type)
    if op == "select":
        return args[1] if args[0] else args[2]
    if op == "convert":
        number: Any = args[0]
    elif len(args) == 1:
        number = unary(op, type_, args[0])
    elif op in get_args(lir.CompareOp):
        number = compare(op, *args)
    else:
        number = binary(op, type_, *args)
    if number is None:
        raise CompilerError(f"The host does not compute {op} of {list(args)}.")
    return bool(number) if type_ == lir.BOOL else wrapped(int(number), type_)
