"""Old module names, for pickles of earlier versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MOVED = {
    "skforge._stored": "skforge.sources.stored_model",
    "skforge.compiler.directives": "skforge.compiler.schedule.directives",
    "skforge.compiler.module": "skforge.compiler.runtime.module",
    "skforge.compiler.module_auto": "skforge.compiler.runtime.auto",
    "skforge.tuning.cost_model": "skforge.tuning.cost.cost_model",
    "skforge.tuning.heuristic": "skforge.tuning.search.heuristic",
    "skforge.tuning.learned": "skforge.tuning.search.learned",
    "skforge.tuning.schedule_search": "skforge.search",
    "skforge.tuning.space.gpu_table5": "skforge.tuning.space.gpu",
    "skforge.tuning.strategies": "skforge.tuning.search.strategies",
    "skforge.tuning.templates_cpu": "skforge.tuning.space.cpu",
    "skforge.tuning.templates_gpu": "skforge.tuning.space.gpu",
    "skforge.tuning.templates_gpu_full": "skforge.tuning.space.gpu",
    "skforge.tuning.trial": "skforge.tuning.search.trial",
}


class _Moved(MetaPathFinder, Loader):
    """Imports a module under its old name."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        # the import system has set the spec of the old name
        module.__spec__ = PathFinder.find_spec(module.__name__, _folder(module))


def _folder(module: ModuleType) -> list[str]:
    return list(sys.modules[module.__name__.rpartition(".")[0]].__path__)


def find_moved_modules() -> None:
    """Install the finder for old module names."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
