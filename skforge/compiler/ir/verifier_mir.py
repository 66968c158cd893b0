"""What every MIR function must satisfy."""

from __future__ import annotations

from skforge.compiler.ir import mir


def verify_mir(function: mir.Function) -> None:
    """Raise if the function is malformed."""
