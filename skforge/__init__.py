"""skforge compiles fitted tree ensembles; every prediction stays the same."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from warnings import warn

from skforge import exceptions
from skforge._version import __version__ as __version__
from skforge.exceptions import InvalidInputError as InvalidInputError
from skforge.exceptions import InvalidModelError as InvalidModelError
from skforge.exceptions import PerformanceWarning as PerformanceWarning
from skforge.exceptions import SkforgeError as SkforgeError
from skforge.exceptions import UnsupportedModelError as UnsupportedModelError
from skforge.exceptions import VerificationWarning as VerificationWarning

if TYPE_CHECKING:
    from skforge.acceleration.api import accelerate as accelerate
    from skforge.acceleration.api import accelerated as accelerated
    from skforge.acceleration.api import restore as restore
    from skforge.acceleration.report import acceleration_report as acceleration_report
    from skforge.compiler.target import Target as Target
    from skforge.estimators import CompiledForest as CompiledForest
    from skforge.explainer import TreeExplainer as TreeExplainer
    from skforge.exporters.api import export as export
    from skforge.forest.forest import Forest as Forest
    from skforge.frontends import load_forest as load_forest
    from skforge.frontends.builder import ForestBuilder as ForestBuilder
    from skforge.inspection import partial_dependence as partial_dependence
    from skforge.modules.compiled import compile_forest as compile_forest
    from skforge.persistence.artifact import save as save
    from skforge.persistence.convert import convert as convert
    from skforge.persistence.loading import load as load
    from skforge.schedule.schedule import Schedule as Schedule

# Loaded on first use, so that `import skforge` imports no heavy packages.
_HOME = {
    "CompiledForest": "skforge.estimators",
    "Forest": "skforge.forest.forest",
    "ForestBuilder": "skforge.frontends.builder",
    "Schedule": "skforge.schedule.schedule",
    "Target": "skforge.compiler.target",
    "TreeExplainer": "skforge.explainer",
    "accelerate": "skforge.acceleration.api",
    "accelerated": "skforge.acceleration.api",
    "acceleration_report": "skforge.acceleration.report",
    "compile_forest": "skforge.modules.compiled",
    "convert": "skforge.persistence.convert",
    "export": "skforge.exporters.api",
    "load": "skforge.persistence.loading",
    "load_forest": "skforge.frontends",
    "partial_dependence": "skforge.inspection",
    "restore": "skforge.acceleration.api",
    "save": "skforge.persistence.artifact",
}


# Hidden from type checkers, which would otherwise accept any name; they read the names
# from the imports above.
if not TYPE_CHECKING:
    _ERRORS = {*exceptions.__all__} & {*globals()}
    __all__ = sorted({*_HOME, *_ERRORS, "__version__"})

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
    return sorted({*globals(), *_HOME})
