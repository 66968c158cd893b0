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
    found = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(found, FunctionType), place
    return found


def edited(function: FunctionType, edit: Edit) -> CodeType:
    """Return the code of a function's text after an edit."""
    text = textwrap.dedent(inspect.getsource(function))
    if (count := text.count(edit.old)) != 1:
        raise NoPlaceError(f"{edit.place} has {edit.old!r} {count} times, not once")
    (definition,) = ast.parse(text.replace(edit.old, edit.new)).body
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
        raise NoPlaceError(f"{edit.place} would read {code.co_freevars}")
    return code


@contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[None]:
    """Run the block with faults in the code, each in a function of its own."""
    functions = [function_at(edit.place) for edit in edits]
    codes = [function.__code__ for function in functions]
    faults = map(edited, functions, edits)
    for function, code in zip(functions, [*faults], strict=True):
        function.__code__ = code
    forget()
    try:
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
        forget()


def forget() -> None:
    """Empty the caches of functions that read rows and models."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(_CACHES):
            for value in [*vars(module).values()]:
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
