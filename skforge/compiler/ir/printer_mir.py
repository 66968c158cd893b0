"""MIR as text: the papers' notation, one statement a line."""

from __future__ import annotations

from skforge.compiler.ir import mir


def print_mir(function: mir.Function) -> str:
    """Return the text of a function."""
    return repr(function)
