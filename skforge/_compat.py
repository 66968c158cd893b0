"""Functions that newer Pythons have in the standard library."""

from __future__ import annotations

from typing import NoReturn


def assert_never(value: NoReturn) -> NoReturn:
    """Prove to the type checker, and check when run, that a match is complete."""
    raise AssertionError(f"no case for {value!r}")
