"""Puts wrapped methods into classes of libraries, and takes them out again.

A wrapped method has the name, text, signature and place of its own one. Classes of a
library that is not imported yet are wrapped as soon as it has been.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial, update_wrapper
from importlib.abc import MetaPathFinder
from types import FunctionType, ModuleType
from typing import Any

from skforge.acceleration.around_importlib_bootstrap import (
    answering,
    changing,
    declining,
    leaving,
)
from skforge.acceleration.calls import OWN
from skforge.acceleration.libraries import LIBRARIES, ClassPlan

#: What was put where: the class, the name, the library's own and ours.
_PATCHED: list[tuple[type, str, Any, Any]] = []
#: By module, what is still to be wrapped; and the modules that are.
_WANTED: dict[str, tuple[ClassPlan, ...]] = {}
_DONE: set[str] = set()


def patch(libraries: tuple[str, ...]) -> None:
    """Wrap the methods of libraries, now or once they are imported."""
    for library in libraries:
        plans = LIBRARIES[library]
        _WANTED.update({name: plans[name] for name in plans if name not in _DONE})
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    for name in [*_WANTED]:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _patch_module(module)


def unpatch() -> None:
    """Put back what libraries had; what others have put over ours stays."""
    _WANTED.clear()
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for kind, name, own, ours in _PATCHED:
        if vars(kind).get(name) is ours:
            setattr(kind, name, own)
    for known in (_PATCHED, _DONE, OWN):
        known.clear()


def _patch_module(module: ModuleType) -> None:
    _DONE.add(module.__name__)
    for plan in _WANTED.pop(module.__name__, ()):
        kind = getattr(module, plan.name, None)
        if not isinstance(kind, type):
            continue  # of another release
        for name in plan.answers:
            _patch_method(kind, name, partial(answering, method=name))
        for name, why in plan.declines:
            _patch_method(kind, name, lambda own, a=name, b=why: declining(own, a, b))
        for name in plan.changes:
            _patch_method(kind, name, changing)
        for name in plan.exposes:
            _patch_method(kind, name, leaving)
        for name in plan.settings:
            own = vars(kind).get(name)
            if isinstance(own, property) and own.fset is not None:
                setter = _like(changing(own.fset), own.fset)
                _put(kind, name, own, property(own.fget, setter, own.fdel, own.__doc__))


def _patch_method(kind: type, name: str, wrap: Any) -> None:
    own: Any = vars(kind).get(name)
    function = getattr(own, "fn", own)  # scikit-learn's available_if has one inside
    if not isinstance(function, FunctionType):
        return
    ours: Any = _like(wrap(function), function)
    if function is not own:
        if not hasattr(own, "check"):
            return
        ours = type(own)(ours, own.check, attribute_name=own.attribute_name)
        ours.__dict__.update({**vars(own), **vars(ours)})
    if isinstance(wrap, partial):
        OWN[kind, name] = function
    _put(kind, name, own, ours)


def _put(kind: type, name: str, own: Any, ours: Any) -> None:
    setattr(kind, name, ours)
    _PATCHED.append((kind, name, own, ours))


def _like(wrapped: Any, own: Any) -> Any:
    """Give a function the looks of another."""
    update_wrapper(wrapped, own)
    if not hasattr(own, "__wrapped__"):  # whose signature is that of what is inside
        wrapped.__signature__ = inspect.signature(own)
    return wrapped


class _Finder(MetaPathFinder):
    """Finds nothing by itself: it lets classes be wrapped after the true import."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in _WANTED:
            return None
        for finder in [f for f in sys.meta_path if f is not self]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            _watch_loader(loader)
        return spec


def _watch_loader(loader: Any) -> None:
    own = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the class's own from now on
        own(module)
        try:
            _patch_module(module)
        except Exception as error:  # noqa: BLE001 - an import must not fail by us
            from skforge.runtime.log import WARNING, log

            log(WARNING, "accelerate: %s is left alone: %s", module.__name__, error)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return  # a loader that takes no attributes; its library is left alone


_FINDER = _Finder()
