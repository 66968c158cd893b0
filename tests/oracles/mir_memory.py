"""Arrays of the MIR interpreter, in which parallel iterations must not meet."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import PredictEnsemble, exit_table
from skforge.exceptions import CompilerError
from skforge.forest.reference import evaluate_predicates
from tests.oracles.codes import encode_rows

Cell: TypeAlias = int | slice
_Context: TypeAlias = tuple[tuple[int, int], ...]


class Fault(CompilerError):
    """Something wrong in one statement; the interpreter says in which."""


class Races:
    """Which iterations of which parallel loops are running.

    A context is the path of (run of a loop, iteration); two contexts may run at the
    same time where they part at different iterations of one run.
    """

    def __init__(self) -> None:
        self._runs = 0
        self._path: _Context = ()
        self._numbers: dict[tuple[_Context, bool], int] = {((), False): 0}
        self._contexts: list[tuple[_Context, bool]] = [((), False)]
        self._answers: dict[tuple[int, int], bool] = {}

    def instance(self) -> int:
        """Return a number for a new run of a loop."""
        self._runs += 1
        return self._runs

    @contextmanager
    def inside(self, iteration: tuple[int, int] | None) -> Generator[None]:
        """Be in an iteration of a parallel loop, if one is given."""
        outer = self._path
        if iteration is not None:
            self._path = (*outer, iteration)
        yield
        self._path = outer

    def number(self, atomic: bool) -> int:
        """Return the number of the current context."""
        key = (self._path, atomic)
        if key not in self._numbers:
            self._numbers[key] = len(self._contexts)
            self._contexts.append(key)
        return self._numbers[key]

    def meet(self, one: int, two: int) -> bool:
        """Tell whether accesses of two contexts to one element are a race."""
        if one == two:
            return False
        if (one, two) not in self._answers:
            (a, a_atomic), (b, b_atomic) = self._contexts[one], self._contexts[two]
            parted = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
            together = parted is not None and parted[0][0] == parted[1][0]
            self._answers[one, two] = together and not (a_atomic and b_atomic)
        return self._answers[one, two]


class Memory:
    """The arrays of a run by name; each remembers who last wrote each element."""

    def __init__(self, races: Races, scratch: np.dtype[Any]) -> None:
        self._races, self._scratch = races, scratch
        self._arrays: dict[str, NDArray[Any]] = {}
        self._writers: dict[str, NDArray[np.int32]] = {}

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Make an array known under a name."""
        self._arrays[name] = array
        self._writers[name] = np.full(array.shape, self._races.number(False), np.int32)

    def alloc(self, name: str, dims: Sequence[int], zero: bool) -> None:
        """Allocate scratch; what is not zeroed is poison."""
        if zero:
            fill = self._scratch.type(0)
        elif self._scratch.kind == "f":
            fill = self._scratch.type("nan")
        else:
            fill = np.iinfo(self._scratch).min
        self.put(name, np.full(tuple(dims), fill, self._scratch))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the extents of an array."""
        return self._arrays[name].shape

    def read(self, name: str, at: tuple[Cell, ...]) -> NDArray[Any]:
        """Return elements, none of which another running iteration has written."""
        self._check(name, at, self._races.number(False))
        part: NDArray[Any] = self._arrays[name][at]
        return part

    def write(self, name: str, at: tuple[Cell, ...], value: Any) -> None:
        """Set elements."""
        here = self._races.number(False)
        self._check(name, at, here)
        self._arrays[name][at] = value
        self._writers[name][at] = here

    def add(
        self, name: str, at: tuple[Cell, ...], value: Any, atomic: bool = False
    ) -> None:
        """Add to elements."""
        here = self._races.number(atomic)
        self._check(name, at, here)
        self._arrays[name][at] += value
        self._writers[name][at] = here

    def _check(self, name: str, at: tuple[Cell, ...], here: int) -> None:
        if name not in self._arrays:
            raise Fault(f'there is no array "{name}"')
        shape = self.shape(name)
        if len(at) != len(shape):
            raise Fault(f"{len(at)} indices for {len(shape)} dimensions")
        for index, extent in zip(at, shape, strict=True):
            first, last = _ends(index, extent)
            if first < 0 or last > extent:
                raise Fault(f"{name} has {extent} elements there, not {first} : {last}")
        writers = self._writers[name][at]
        seen = {int(writers)} if writers.ndim == 0 else np.unique(writers).tolist()
        for writer in seen:
            if self._races.meet(writer, here):
                raise Fault(f"parallel iterations meet in {name}{list(at)}")


def _ends(index: Cell, extent: int) -> tuple[int, int]:
    if isinstance(index, slice):
        if index.start is None:
            return 0, extent
        return index.start, max(index.start, index.stop)
    return index, index + 1


class Walks:
    """Where each row goes from each item."""

    def __init__(self, hir: PredictEnsemble, X: NDArray[Any]) -> None:
        self._hir, self._rows = hir, X
        self._codes: NDArray[Any] | None = None
        self._is_leaf = (hir.tiles.leaf >= 0).tolist()
        self._truth: dict[int, NDArray[np.bool_]] = {}

    def is_leaf(self, item: int) -> bool:
        """Return whether an item is a leaf."""
        return bool(self._is_leaf[item])

    def next(self, item: int, row: int) -> int:
        """Return the item behind the exit that a row takes; node 0 is the top bit."""
        tiles = self._hir.tiles
        truth = self._tests(row)
        bits = 0
        for predicate in tiles.predicate[item].tolist():
            bits = bits * 2 + (predicate >= 0 and bool(truth[predicate]))
        exit_ = exit_table(tiles.tile_size)[tiles.shape[item], bits]
        child = int(tiles.child[item, exit_])
        if child < 0:
            raise Fault("a row took the exit of a dummy")
        return child

    def _tests(self, row: int) -> NDArray[np.bool_]:
        """Return the outcome of every predicate for a row."""
        if row not in self._truth:
            codes = self._codes_of(row)
            if codes is not None:
                table = self._hir.codes
                assert table is not None
                own = codes[table.column_of]
                left = np.where(table.equal, own == table.rank_of, own <= table.rank_of)
                self._truth[row] = left
                return left
            forest = self._hir.forest
            every = np.arange(forest.n_predicates)
            values = self._rows[row, forest.feature]
            self._truth[row] = evaluate_predicates(forest, every, values)
        return self._truth[row]

    def _codes_of(self, row: int) -> NDArray[Any] | None:
        """Return the codes of a row, where the kernel compares codes."""
        hir = self._hir
        if hir.codes is None:
            return None
        if self._codes is None:
            self._codes = encode_rows(hir.codes, hir.forest, hir.comparison, self._rows)
        made: NDArray[Any] = self._codes[row]
        return made
