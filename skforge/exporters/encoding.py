"""Rows with categories: the function that encodes them, and texts to check it with."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.categories import (
    ABOVE,
    ABOVE_OR_NAN,
    EQUAL,
    HashedCategories,
)
from skforge.compiler.runtime.entry.encoder_tables import ARRAYS, SIZES, tables_of
from skforge.compiler.runtime.entry.hashing_routines import KM

#: How many known categories of all columns are drawn, and of one column at least.
_MOST_KNOWN, _FEWEST_KNOWN = 256, 4
#: The longest text drawn that the model may not know.
_LONGEST = 200


def draw_cells(hashed: HashedCategories, rows: NDArray[Any]) -> NDArray[np.object_]:
    """Return rows of numbers and texts, as callers have them.

    Numbers are those of the forest's rows, or borders of combinations. The model knows
    most texts.
    """
    random = np.random.default_rng(1)
    numbers = rows[:, : hashed.n_columns].copy()
    borders = np.flatnonzero(np.isin(hashed.part_kind, (ABOVE, ABOVE_OR_NAN)))
    for row in np.flatnonzero(random.random(len(rows)) < 0.3) if len(borders) else ():
        part = random.choice(borders)
        border = hashed.part_value[part : part + 1].view(np.float32)
        numbers[row, hashed.part_column[part]] = border[0]
    cells = numbers.astype(object)
    places = np.flatnonzero(hashed.is_category)
    most = max(_FEWEST_KNOWN, _MOST_KNOWN // max(1, len(places)))
    known = _known(hashed)
    for place in places:
        some = random.permutation(known[place])[:most].tolist()
        texts = [_text_of(each, random) for each in some] or [""]
        cells[:, place] = [
            *map(texts.__getitem__, random.integers(len(texts), size=len(rows)))
        ]
        for row in np.flatnonzero(random.random(len(rows)) < 0.15):
            letters = random.choice([*_LETTERS], random.integers(_LONGEST + 1))
            cells[row, place] = "".join(letters)
    return cells


_LETTERS = 'abc xyz,"-_.0123456789é€日'


def _known(hashed: HashedCategories) -> list[NDArray[np.int32]]:
    """Return the hashes of each column that the model has, as far as they stand alone.

    Those that occur only together with others cannot be told from the model.
    """
    sizes, arrays = tables_of(hashed)
    a = dict(zip(ARRAYS, arrays, strict=True))
    columns = a["value_column"][: sizes[SIZES.index("n_ranked")]].tolist()
    found: list[list[NDArray[np.int32]]] = [[] for _ in hashed.is_category]
    ends = np.append(a["slot_start"], len(a["slot_hash"])).tolist()
    for column, slots in zip(2 * columns, pairwise(ends), strict=True):
        some = slice(*slots)
        found[column].append(a["slot_hash"][some][a["slot_rank"][some] > 0])
    for place in np.flatnonzero(hashed.part_kind == EQUAL):
        column = hashed.part_column[place]
        found[column].append(hashed.part_value[place : place + 1])
    none = np.zeros(0, np.int32)
    return [np.unique(np.concatenate([none, *hashes])) for hashes in found]


def _text_of(wanted: int, random: np.random.Generator) -> str:
    """Return a text of 16 characters that has a hash of 32 bits.

    With its last 8 bytes, each hash of 64 bits has one first half, and some of these
    are texts. The hash is in :mod:`~skforge.compiler.runtime.entry.hashing_routines`.
    """
    inverse = np.uint64(pow(KM, -1, 1 << 64))
    end = np.uint64(int.from_bytes(_END, "little"))
    with np.errstate(over="ignore"):
        total = end + np.uint64(16)
        v = total >> np.uint64(16) | total << np.uint64(48)
        while True:
            high = random.integers(1 << 32, size=_TRIES, dtype=np.uint64)
            whole = high << np.uint64(32) | np.uint64(wanted & 0xFFFFFFFF)
            x = _mixed((whole ^ end) * inverse) * inverse ^ v
            first = (_mixed(x) * inverse ^ v).astype("<u8")
            letters = first.view(np.uint8).reshape(-1, 8)
            good = ((letters > 32) & (letters < 127)).all(axis=1)
            if good.any():
                return (letters[good][0].tobytes() + _END).decode()


_END, _TRIES = b" skforge", 1 << 13


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return x ^ x >> np.uint64(47)
