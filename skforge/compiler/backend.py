"""What each kind of machine does in its own way: an interface, and who implements it.

A part is imported when a target first needs it: a process that computes on its CPU
imports nothing of ``skforge.gpu``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import PredictEnsemble
    from skforge.compiler.ir.lir import nodes as lir
    from skforge.compiler.ir.mir import nodes as mir
    from skforge.compiler.layouts.base import AnyLayout, BlockShape
    from skforge.compiler.lowering.kernel import LoweredKernel
    from skforge.compiler.schedule.directives import Kind
    from skforge.compiler.target import Target


#: Takes a function, its HIR and the bytes of memory that the threads of a block share.
MirPass: TypeAlias = "Callable[[mir.Function, PredictEnsemble, int], mir.Function]"


class LirPass(NamedTuple):
    name: str
    run: Callable[[lir.Function, LoweredKernel], lir.Function]


class Backend(ABC):
    """The part of one kind of machine; it holds no state."""

    #: The passes on MIR that are its own, by their names in ``MIR_PASSES``.
    mir_passes: ClassVar[Mapping[str, MirPass]] = {}
    #: What follows ``LIR_PASSES``.
    lir_passes: ClassVar[tuple[LirPass, ...]] = ()

    def block_shape(self, body: mir.Body) -> BlockShape | None:
        """Return the threads that evaluate predicates together, if threads do."""
        return None

    @abstractmethod
    def lower(
        self,
        function: mir.Function,
        hir: PredictEnsemble,
        layout: AnyLayout,
        target: Target,
        name: str,
    ) -> LoweredKernel:
        """Lower a legalised function whose walks are expanded."""


_HOMES: dict[Kind, str] = {"cpu": "skforge.compiler.cpu", "gpu": "skforge.gpu.backend"}


@cache
def backend(kind: Kind) -> Backend:
    """Return the part that runs schedules of a kind."""
    made: Backend = import_module(_HOMES[kind]).BACKEND
    return made


def backend_of(target: Target) -> Backend:
    return backend(target.schedule_kind)
