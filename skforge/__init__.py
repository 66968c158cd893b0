"""skforge compiles fitted tree ensembles; every prediction stays the same."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from warnings import warn

from skforge import exceptions
from skforge._version import __version__
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    PerformanceWarning,
    SkforgeError,
    UnsupportedModelError,
    VerificationWarning,
)

if TYPE_CHECKING:
    from skforge.compiler.forest.forest import Forest
    from skforge.compiler.frontends import load_forest
    from skforge.compiler.frontends.builder import ForestBuilder
    from skforge.compiler.runtime.module import compile_forest
    from skforge.compiler.schedule.schedule import Schedule
    from skforge.compiler.target import Target
    from skforge.estimators import CompiledForest
    from skforge.explainer import TreeExplainer
    from skforge.exporters.api import export
    from skforge.inspection import partial_dependence
    from skforge.persistence.artifact import save
    from skforge.persistence.loading import load

# Loaded on first use, so that `import skforge` imports no heavy packages.
_HOME = {
    "CompiledForest": "skforge.estimators",
    "Forest": "skforge.compiler.forest.forest",
    "ForestBuilder": "skforge.compiler.frontends.builder",
    "Schedule": "skforge.compiler.schedule.schedule",
    "Target": "skforge.compiler.target",
    "TreeExplainer": "skforge.explainer",
    "compile_forest": "skforge.compiler.runtime.module",
    "export": "skforge.exporters.api",
    "load": "skforge.persistence.loading",
    "load_forest": "skforge.compiler.frontends",
    "partial_dependence": "skforge.inspection",
    "save": "skforge.persistence.artifact",
}

__all__ = [
    "CompiledForest",
    "Forest",
    "ForestBuilder",
    "InvalidInputError",
    "InvalidModelError",
    "PerformanceWarning",
    "Schedule",
    "SkforgeError",
    "Target",
    "TreeExplainer",
    "UnsupportedModelError",
    "VerificationWarning",
    "__version__",
    "compile_forest",
    "export",
    "load",
    "load_forest",
    "partial_dependence",
    "save",
]


# Hidden from type checkers, which would otherwise accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        if name in exceptions.__all__:
            warn(
                f"skforge.{name} was deprecated in 0.2 and will be removed in 0.4; use "
                f"skforge.exceptions.{name}.",
                FutureWarning,
                stacklevel=2,
            )
            return getattr(exceptions, name)
        raise AttributeError(f"module 'skforge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
