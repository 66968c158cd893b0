"""Rows as each source library takes them: its checks, its warnings, its errors.

A :class:`Source` turns what a user passes into rows for the kernels. Whatever it
does not know it declines, and the caller asks the source's own method instead: the
value, the warning or the exception is then the source's by construction.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class Source(Protocol):
    """A fitted model seen as a taker of rows."""

    #: What absent entries of sparse rows mean.
    fill: float
    #: Whether its own ``predict`` speaks in labels (a Booster's has only scores).
    labels: bool
    #: Dtype of its leaf numbers, and whether ``apply`` drops the axis of one tree.
    leaf_dtype: Any
    flat_leaves: bool

    def rows(self, X: Any, method: str) -> Any:
        """Return an array or CSR matrix for the kernels; None declines."""
        ...

    def plain(self, X: Array) -> bool:
        """Tell whether the source would take these rows without a word.

        ``X`` is known to be a C-contiguous array of the forest's dtype and width.
        """
        ...

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Return what the source's own method returns."""
        ...

    def raw(self, rows: Array) -> Array:
        """Return raw scores, computed by the source on one thread."""
        ...

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return what methods of a ``Predictor`` must return, computed likewise."""
        ...
