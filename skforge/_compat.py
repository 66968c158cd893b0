"""Functions that newer Pythons have in the standard library."""

from __future__ import annotations

from typing import NoReturn


def assert_never(value: NoReturn) -> NoReturn:
    """Mark a match as complete, for the type checker and at run time."""
    raise AssertionError(f"no case for {value!r}")
