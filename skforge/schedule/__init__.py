"""The scheduling language: directives, loop nests, legality, families, presets."""

from __future__ import annotations

from importlib import import_module

_HOME = {"PRESETS": "presets", "Schedule": "schedule"}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
