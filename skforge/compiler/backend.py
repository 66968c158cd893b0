"""What each kind of machine does in its own way: an interface, and who implements it.

A part is imported when a target first needs it: a process that computes on its CPU
imports nothing of ``skforge.gpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from skforge._typing import Array, Int32s
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
    from skforge.compiler.ir.lir import nodes as lir
    from skforge.compiler.ir.mir import nodes as mir
    from skforge.compiler.layouts.base import AnyLayout
    from skforge.compiler.lowering.kernel import LoweredKernel
    from skforge.forest.forest import Forest
    from skforge.outputs.library import ArrayLibrary
    from skforge.schedule.directives import ScheduleKind
    from skforge.schedule.ranges import SchedulesByRange as Table
    from skforge.schedule.schedule import Schedule


#: Takes a function, its HIR and the bytes of memory that the threads of a block share.
MirPass: TypeAlias = "Callable[[mir.Function, PredictEnsemble, int], mir.Function]"


class LirPass(NamedTuple):
    name: str
    run: Callable[[lir.Function, LoweredKernel], lir.Function]


@dataclass(eq=False)
class Backend:
    """The part of one kind of machine: what it answers, without state."""

    #: Whether kernels are called by address, as entries, threads and walks of sparse
    #: rows do, and a schedule's time is estimated for numbers of threads.
    native: bool

    # ---------------------------------------------------------------- compiling

    #: Lowers a legalised function, whose walks are expanded, given its HIR and layout,
    #: and by name ``target`` and ``name``.
    lower: Callable[..., LoweredKernel]
    #: What this process can run in place of a function, and on which CPU.
    in_process: Callable[[lir.Function, Target], tuple[lir.Function, Target]]
    #: The levels below LIR that have a text.
    code_levels: Callable[[Target], tuple[str, ...]]

    # ----------------------------------------------------------------- choosing

    #: What costs depend on.
    shape: Callable[[Forest | ForestShape, Target], ForestShape]
    #: The last is whether this machine may be measured first.
    default_table: Callable[[Forest | ForestShape, Target, Reduction, bool], Table]
    #: A default whose walks end at leaves, for their numbers.
    walking: Callable[[Forest, Target], Schedule]
    contribution_table: Callable[[Forest], Table]

    # ------------------------------------------------------------------ running

    #: The machine here that runs a target's code, parsed from a name. Raises
    #: ``TargetError`` if there is none.
    available: Callable[[Target, object], Target]
    #: The kernel that was lowered, or stored.
    kernel: Callable[[Any, Target], Any]
    #: The machine here that runs schedules of this kind, or it raises.
    for_schedules: Callable[[], Target] = Target.host
    #: A target as files store it: by name if it may differ on loading.
    stored: Callable[[Target], Any] = lambda target: target

    #: The rows of a forest that it explains sooner than each thread of the CPU.
    least_explained: Callable[[Forest, Target], float] = lambda forest, target: 0

    # -------------------------------------------------------------- of GPUs alone

    #: The passes on MIR that are its own, by their names in ``MIR_PASSES``.
    mir_passes: Mapping[str, MirPass] = field(default_factory=dict)
    #: What follows ``LIR_PASSES``.
    lir_passes: tuple[LirPass, ...] = ()
    #: The layout of a forest whose rows threads take each through all trees, if
    #: its representation ``takes_rows_by_thread``.
    lay_out_rows: Callable[[PredictEnsemble], AnyLayout | None] = lambda hir: None
    #: A function as text for a device, at a level, not for this process.
    device_text: Callable[[lir.Function, Target, str], str] = lambda *_: ""


class OnDevice(Protocol):
    """What computes with rows in a device's memory, in which the results stay."""

    def raw(self, module: Any, X: Any) -> Array: ...

    def leaves(self, module: Any, X: Any) -> Int32s: ...

    def answered(
        self, target: Target, of_scores: Callable[[Any, ArrayLibrary], Any], raw: Any
    ) -> Any: ...

    def rows_on_host(self, X: Any, indices: Array) -> Array: ...

    def target_here(self) -> Target | None: ...


_HOMES: dict[ScheduleKind, str] = {
    "cpu": "skforge.engine.cpu.backend",
    "gpu": "skforge.gpu.backend",
}
#: Of machines with memory of their own.
_DEVICE_HOMES: dict[ScheduleKind, str] = {"gpu": "skforge.gpu.runtime.on_device"}


@cache
def backend(kind: ScheduleKind) -> Backend:
    """Return the part that runs schedules of a kind."""
    return import_module(_HOMES[kind]).BACKEND


def backend_of(target: Target) -> Backend:
    return backend(target.schedule_kind)


@cache
def on_device() -> OnDevice:
    return import_module(_DEVICE_HOMES["gpu"]).ON_DEVICE


def device_here() -> Target | None:
    """Return the device for large batches, if this computer has one."""
    return on_device().target_here()
