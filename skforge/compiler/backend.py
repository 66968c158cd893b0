"""What each kind of machine does in its own way: an interface, and who implements it.

A part is imported when a target first needs it: a process that computes on its CPU
imports nothing of ``skforge.gpu``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.forest.forest import Forest
    from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
    from skforge.compiler.ir.lir import nodes as lir
    from skforge.compiler.ir.mir import nodes as mir
    from skforge.compiler.layouts.base import AnyLayout
    from skforge.compiler.lowering.kernel import LoweredKernel
    from skforge.compiler.schedule.directives import ScheduleKind
    from skforge.compiler.schedule.ranges import BatchRange
    from skforge.compiler.schedule.schedule import Schedule


#: Takes a function, its HIR and the bytes of memory that the threads of a block share.
MirPass: TypeAlias = "Callable[[mir.Function, PredictEnsemble, int], mir.Function]"


class LirPass(NamedTuple):
    name: str
    run: Callable[[lir.Function, LoweredKernel], lir.Function]


class Backend(ABC):
    """The part of one kind of machine; it holds no state."""

    #: Whether kernels are called by address, as entries, threads and walks of sparse
    #: rows do, and a schedule's time is estimated for numbers of threads.
    native: ClassVar[bool]

    # ---------------------------------------------------------------- compiling

    #: The passes on MIR that are its own, by their names in ``MIR_PASSES``.
    mir_passes: ClassVar[Mapping[str, MirPass]] = {}
    #: What follows ``LIR_PASSES``.
    lir_passes: ClassVar[tuple[LirPass, ...]] = ()

    def check_blocks(self, hir: PredictEnsemble, body: mir.Body) -> bool:
        """Check blocks of rows that threads share; return whether there are any."""
        return False

    def lay_out_blocks(
        self, hir: PredictEnsemble, body: mir.Body, target: Target
    ) -> AnyLayout | None:
        """Lay a forest out for blocks of rows that threads share, if there are any."""
        return None

    @abstractmethod
    def lower(
        self,
        function: mir.Function,
        hir: PredictEnsemble,
        layout: AnyLayout,
        *,
        target: Target,
        name: str,
    ) -> LoweredKernel:
        """Lower a legalised function whose walks are expanded."""

    @abstractmethod
    def in_process(
        self, function: lir.Function, target: Target
    ) -> tuple[lir.Function, Target]:
        """Return what this process can run in place of a function, and on which CPU."""

    @abstractmethod
    def code_levels(self, target: Target) -> tuple[str, ...]:
        """Return the levels below LIR that have a text."""

    def device_text(self, function: lir.Function, target: Target, level: str) -> str:
        """Return a function as text for a device, not for this process."""
        raise NotImplementedError

    # ----------------------------------------------------------------- choosing

    @abstractmethod
    def shape(self, forest: Forest | ForestShape, target: Target) -> ForestShape:
        """Return what costs depend on."""

    @abstractmethod
    def default_table(
        self, forest: Forest | ForestShape, target: Target, reduction: Reduction
    ) -> dict[BatchRange, Schedule]: ...

    @abstractmethod
    def walking(self, forest: Forest, target: Target) -> Schedule:
        """Return a default whose walks end at leaves, for their numbers."""

    @abstractmethod
    def contribution_table(self, forest: Forest) -> dict[BatchRange, Schedule]: ...

    # ------------------------------------------------------------------ running

    @abstractmethod
    def available(self, target: Target, name: object) -> Target:
        """Return the machine here that runs a target's code, parsed from a name.

        Raises ``TargetError`` if there is none.
        """

    def for_schedules(self) -> Target:
        """Return the machine here that runs schedules of this kind, or raise."""
        return Target.host()

    def stored(self, target: Target) -> Any:
        """Return a target as files store it: by name if it may differ on loading."""
        return target

    @abstractmethod
    def kernel(self, source: Any, target: Target) -> Any:
        """Return the kernel that was lowered, or stored."""


_HOMES: dict[ScheduleKind, str] = {
    "cpu": "skforge.compiler.cpu",
    "gpu": "skforge.gpu.backend",
}


@cache
def backend(kind: ScheduleKind) -> Backend:
    """Return the part that runs schedules of a kind."""
    return import_module(_HOMES[kind]).BACKEND


def backend_of(target: Target) -> Backend:
    return backend(target.schedule_kind)


@cache
def on_device() -> ModuleType:
    """Return what computes with rows that lie in a device's memory."""
    return import_module("skforge.gpu.runtime.on_device")


def device_here() -> Target | None:
    """Return the device for large batches, if this computer has one."""
    return import_module("skforge.gpu.runtime.cupy").target_here()
