"""Readers: they make rows of a forest of those that users have, by the forest alone.

What knows a library's own rules for rows, such as those of a model, is in
``skforge/sources``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.engine.arrays import is_device_array
from skforge.forest.forest import Forest
from skforge.rows import sparse_rows
from skforge.rows.prepare import prepare_rows


class RowReader(Protocol):
    """Reads rows; what it refuses raises ``InvalidInputError``."""

    #: Whether it makes arrays of all rows, as values are checked or computed with.
    on_host: bool

    def rows(self, X: Any) -> Array:
        """Return rows as numbers of the forest."""

    def parts(self, X: Any) -> Sequence[Any]:
        """Return rows, or their parts in turn, on the GPU if they are there."""

    def entry(self, entry: Any) -> Any:
        """Return an entry that takes users' rows, before one that takes numbers."""

    def spelled_booleans(self) -> dict[int, bool]:
        """Return the columns that are hashed; whether True was a text in training."""


class PlainReader:
    """Reads rows whose columns are the forest's features."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self.on_host = bool(forest.whole_columns or forest.row_norms)

    def rows(self, X: Any) -> Array:
        return prepare_rows(self._forest, X)

    def parts(self, X: Any) -> Sequence[Any]:
        if self.on_host:
            return (self.rows(X),)
        if type(X) is not np.ndarray and is_device_array(X):
            return (X,)
        if sparse_rows.is_sparse(X):
            return [*sparse_rows.blocks_of(self._forest, X)]
        return (self.rows(X),)

    def entry(self, entry: Any) -> Any:
        return entry

    def spelled_booleans(self) -> dict[int, bool]:
        return {}


class GraphReader(PlainReader):
    """Reads rows of ONNX graphs with names or texts."""

    def rows(self, X: Any) -> Array:
        return self._known.rows(X)

    def entry(self, entry: Any) -> Any:
        return _declines if self._forest.row_norms else entry

    @cached_property
    def _known(self) -> Any:
        from skforge.rows.graph_rows import GraphRows

        return GraphRows(self._forest)


def _declines(X: Any) -> None:
    """Answer in place of an entry that users' rows are no rows of."""


def reader_of(forest: Forest) -> RowReader:
    if forest.hashed is not None:
        from skforge.rows.hashed_rows import HashedRows  # which compiles code

        return HashedRows(forest)
    return GraphReader(forest) if forest.is_graph else PlainReader(forest)
