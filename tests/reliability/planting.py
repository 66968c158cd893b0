"""Plants a fault in skforge's code while a block runs, and takes it out again.

An edit replaces a piece of a function's text. The function stays the object that
others hold; it runs the edited code. If the place or the text is no longer there,
``NoPlaceError`` says so, so that no fault is believed to be planted that is not.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

#: Attributes of descriptors and wrappers that hold the function of a user.
_INSIDE = ("__func__", "fget", "func", "__wrapped__")
#: Modules whose caches hold what the edited code has made.
_CACHES = ("skforge.sources", "skforge.forest", "skforge.frontends")
_CACHES += ("skforge.outputs", "skforge.polars", "skforge.persistence")


class NoPlaceError(Exception):
    """The text that a fault replaces is not in the code."""


@dataclass(frozen=True)
class Edit:
    #: ``module:function`` or ``module:Class.method``, without "skforge.".
    place: str
    old: str
    new: str


def function_at(place: str) -> FunctionType:
    module, _, path = place.partition(":")
    found: Any = import_module(f"skforge.{module}")
    for name in path.split("."):
        try:
            found = inspect.getattr_static(found, name)
        except AttributeError:
            raise NoPlaceError(f"skforge.{module} has no {path}") from None
        while not isinstance(found, (FunctionType, type)):
            inner = [getattr(found, name) for name in _INSIDE if hasattr(found, name)]
            if not inner:
                raise NoPlaceError(f"skforge.{module}:{path} is no function")
            found = inner[0]
    assert isinstance(found, FunctionType), place
    return inspect.unwrap(found)


def edited(function: FunctionType, edits: Sequence[Edit]) -> CodeType:
    """Return the code of a function's text after some edits."""
    text = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if (count := text.count(edit.old)) != 1:
            raise NoPlaceError(f"{edit.place} has {edit.old!r} {count} times, not once")
        text = text.replace(edit.old, edit.new)
    (definition,) = ast.parse(text).body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    names = function.__code__.co_freevars  # such as the __class__ of ``super()``
    around = ast.parse(f"def around({', '.join(names)}):\n    pass")
    (outer,) = around.body
    assert isinstance(outer, ast.FunctionDef)
    result = ast.Name(definition.name, ast.Load())
    outer.body = [definition, ast.Return(result)]
    ast.fix_missing_locations(around)
    flags = __future__.annotations.compiler_flag
    scope = dict(function.__globals__)
    exec(compile(around, "<planted>", "exec", flags, dont_inherit=True), scope)
    code: CodeType = scope["around"](*[None] * len(names)).__code__
    if code.co_freevars != names:
        raise NoPlaceError(f"{edits[0].place} would read {code.co_freevars}")
    return code


@contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[None]:
    """Run the block with faults in the code."""
    by_place: dict[str, list[Edit]] = {}
    for edit in edits:
        by_place.setdefault(edit.place, []).append(edit)
    codes = []
    for place, of_place in by_place.items():
        function = function_at(place)
        codes.append((function, function.__code__, edited(function, of_place)))
    for function, _, code in codes:
        function.__code__ = code
    forget()
    try:
        yield
    finally:
        for function, code, _ in codes:
            function.__code__ = code
        forget()


def forget() -> None:
    """Empty the caches of functions that read rows and models."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(_CACHES):
            for value in [*vars(module).values()]:
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
