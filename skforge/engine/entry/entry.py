"""Python entry points compiled with the kernels, called without any wrapper.

``ctypes`` costs 4 us per call and NumPy's checks about as much, several times the cost
of walking one row. So the checks, the output array and the transform are compiled too,
as a C function that Python calls directly (a ``PyCFunction``; no C extension)::

    entry(rows):
      if type(rows) is not numpy.ndarray: return None
      if not 2-d, no floats, other width: return None
      if no kernel is compiled for this many rows: return None
      if float64 for float32 or the other way, or gaps between columns: copy
      if a value is one the source refuses (inf): return None
      out = numpy.empty(...)
      kernel(rows, out)           # without the GIL and on threads when it is worth it
      transform(out)
      return out

``None`` means declined: the caller uses its ordinary path, which validates, warns and
raises as the source does. :func:`as_method` makes a method of an entry, which calls the
ordinary path itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.programs import program
from skforge.engine.cpu.threads import entry_symbols
from skforge.forest.forest import Forest
from skforge.forest.rows import whole_range
from skforge.outputs.steps import (
    EntryKind,
    Refused,
    Steps,
    loops_of,
)
from skforge.runtime import entries, python_objects
from skforge.runtime.entries import EntrySizes

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Routine

#: Work, in rows * node visits, from which the GIL is released: about 20 us.
GIL_WORK = 30_000
#: Work up to which a bound method is an entry: about 40 us.
METHOD_WORK = 60_000
#: Most labels in a table in an entry's code.
MAX_LABELS = 1000
#: Most values of a batch; for larger ones the ordinary path costs nothing noticeable.
MAX_VALUES = 1 << 20


def supports(forest: Forest) -> bool:
    """Tell whether entries are possible: they read CPython's object layout."""
    return (
        python_objects.is_known_python()
        and bool(np.isnan(forest.missing_value))
        and forest.n_trees > 0
        and forest.n_features > 0
        and python_objects.numpy_api() is not None
    )


def kind_of(forest: Forest, steps: Steps, refused: Refused, limit: float) -> EntryKind:
    return EntryKind(
        n_outputs=forest.n_outputs,
        row_dtype=forest.input_dtype.name,
        sum_dtype=forest.accumulator_dtype.name,
        steps=steps,
        refused=refused,
        limit=float(limit),
        whole=_whole_ranges(forest),
    )


def _whole_ranges(forest: Forest) -> tuple[tuple[int, int, int, int], ...]:
    ranges: list[tuple[int, int, int, int]] = []
    for column, bits in forest.whole_columns:
        known = whole_range(bits, forest.input_dtype)
        first = column
        if ranges and (column, known) == (ranges[-1][1], ranges[-1][2:]):
            first = ranges.pop()[0]
        ranges.append((first, column + 1, *known))
    return tuple(ranges)


def sizes_of(
    forest: Forest, width: int, first_rows: Sequence[int], most_rows: int | None
) -> EntrySizes:
    """Return the sizes of batches that pay, of rows of ``width`` columns.

    ``first_rows`` are the least rows of each batch range.
    """
    work = max(1, int(forest.n_trees * max(1.0, forest.mean_depth())))
    most = max(1, MAX_VALUES // max(width, forest.n_outputs))
    return EntrySizes(
        n_features=width,
        most_rows=most if most_rows is None else min(most, most_rows),
        method_rows=max(1, METHOD_WORK // work),
        gil_rows=max(1, GIL_WORK // work),
        last_rows=[first - 1 for first in first_rows[1:]],
    )


def build_entry(
    kind: EntryKind,
    sizes: EntrySizes,
    table: entries.KernelTable,
    target: Target,
    classes: Any = None,
    shares: entries.ShareTable | None = None,
) -> Any:
    """Compile an entry point and return it as a builtin function of one argument.

    It returns ``classes``, if given, in place of class indices, and runs batches on
    several threads as ``shares`` says.
    """
    labels: Any = kind.steps.labels
    if classes is not None:
        known = _labels(classes)
        takes, labels = known is None, classes if known is None else known
        kind = replace(kind, takes=takes, steps=replace(kind.steps, labels=known or ()))
    sizes = sizes._replace(method_rows=min(sizes.most_rows, sizes.method_rows))
    # The code reads objects of Python and NumPy where these releases have them.
    releases = str(sys.implementation.cache_tag), np.__version__
    facts = "entry", *releases, repr(kind)
    symbols: dict[str, int] = {}
    if shares is not None:
        symbols |= {**entry_symbols(), "skf_shares": shares.address}
    loops = loops_of(kind.steps.function, kind.sum_dtype) or {}

    def code(known: Mapping[str, int]) -> MachineCode:
        symbols_of_all = {**known, **symbols, **loops}
        return program(facts, partial(_routines, kind), target, symbols_of_all)

    entry = entries.open_entry(code, table, sizes, labels)
    entry.__self__.kept.append(shares)
    entry.__self__.alone = not symbols
    entry.__self__.loops = [[name[4:], kind.sum_dtype] for name in loops]
    return entry


def _routines(kind: EntryKind) -> Sequence[Routine | str]:
    from skforge.engine.entry import routines

    return routines.write(kind)


def _labels(classes: Any) -> tuple[int, ...] | None:
    """Return the table of labels, empty if they are indices; None for NumPy's take."""
    if classes.dtype != np.int64 or classes.ndim > 1:
        return None
    if not 1 < len(classes) <= MAX_LABELS:  # code of two classes would read a second
        return None
    if np.array_equal(classes, np.arange(len(classes))):
        return ()
    return tuple(classes.tolist())
