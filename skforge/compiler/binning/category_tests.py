"""Whether a value is outside a set of categories, for scalars and vectors alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rows import Model
from skforge.compiler.forest.arrays import Comparison
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, U32, Value


def category_tables(
    forest: Forest,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    """Return each set's first word, its number of words, and all words (one spare)."""
    category = np.flatnonzero(forest.comparison >= Comparison.IN)
    start = forest.category_offset[:-1][category].astype(np.uint32)
    count = np.diff(forest.category_offset)[category].astype(np.uint32)
    words = np.append(forest.category_words, np.uint32(0)).astype(np.uint32)
    return start, count, words


def category_entry(
    b: Builder, forest: Forest, x: Value, entries: int, exact: bool = False
) -> Value:
    """Return the entry of a value in a table of sets, as u32.

    Parameters
    ----------
    b : Builder
        Receives the operations.
    forest : Forest
        Where it truncates, ``x`` is cut toward zero first.
    x : Value
        Scalar or vector.
    entries : int
        Of the table: the last is that of a category in no set, the one before that of
        a missing value.
    exact : bool, default=False
        Whether a number with a fraction is in no set.
    """
    positive = above = b.compare("ge", x, b.const(0.0, x.type))
    below = b.compare("lt", x, b.const(float(entries - 2), x.type))
    if forest.truncate_categories:
        above = b.compare("gt", x, b.const(-1.0, x.type))
    safe = b.select(b.binary("and", positive, below), x, b.const(0.0, x.type))
    code = b.convert(safe, U32)
    known = b.binary("and", above, below)
    if exact:
        whole = b.convert(code, x.type.element)
        known = b.binary("and", known, b.compare("eq", whole, x))
    code = b.select(known, code, b.const(entries - 1, code.type))
    return b.select(b.is_nan(x), b.const(entries - 2, code.type), code)


def outside_set(
    b: Builder,
    forest: Forest,
    number: Value,
    x: Value,
    exact: Value | None,
    model: Model,
) -> Value:
    """Return whether ``x`` is no category of a set, so that the row goes right.

    Parameters
    ----------
    b : Builder
        Receives the operations.
    forest : Forest
        Whose sets; where it truncates, ``x`` is cut toward zero first.
    number : Value
        Of the set, a scalar integer.
    x : Value
        Scalar or vector; a missing value has its own rule, and any answer here.
    exact : Value or None
        Whether a number with a fraction is in no set; None: never.
    model : callable
        Declares the tables of sets.
    """
    start, size, words = category_tables(forest)
    starts = model("category_start", start)
    sizes = model("category_count", size)
    table = model("category_words", words)
    n = x.type.lanes
    number = b.convert(number, I64)
    first = b.splat(b.convert(b.load(starts, number), I64), n)
    held = b.splat(b.convert(b.load(sizes, number), I64), n)
    positive = above = b.compare("ge", x, b.const(0.0, x.type))
    below = b.compare("lt", x, b.const(float(1 << 31), x.type))
    if forest.truncate_categories:
        above = b.compare("gt", x, b.const(-1.0, x.type))
    possible = b.binary("and", above, below)
    # What is cut to category 0 is read as 0.0: negative numbers do not convert.
    safe = b.select(b.binary("and", positive, below), x, b.const(0.0, x.type))
    code = b.convert(safe, U32)
    if exact is not None:
        whole = b.compare("eq", b.convert(code, x.type.element), x)
        cut = b.splat(b.invert(exact), n)
        possible = b.binary("and", possible, b.binary("or", whole, cut))
    word = b.convert(b.binary("shr", code, 5), I64)
    inside = b.binary("and", possible, b.compare("lt", word, held))
    # The word read is then the spare one, so that no load leaves the table.
    spare = b.splat(b.const(len(words) - 1), n)
    bits = b.load(table, b.select(inside, b.binary("add", first, word), spare))
    bit = b.binary("and", b.binary("shr", bits, b.binary("and", code, 31)), 1)
    found = b.compare("ne", bit, b.const(0, bit.type))
    return b.invert(b.binary("and", inside, found))
