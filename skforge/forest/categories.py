"""Categories known by hashes: how rows become those of a forest with CatBoost's tests.

A row of the source has numbers and categories. The forest's row has the numbers, 0 for
each category, and then a *statistic* for each thing that is known of a combination of
values (the share of positive targets in training, say, or whether a category is a
certain one): how many of the borders that the forest tests it exceeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from skforge._compat import cached_property
from skforge._typing import Array, Bools, Int32s, Int64s, Uint64s
from skforge.exceptions import InvalidModelError
from skforge.runtime.digests import sha256

#: What a part of a combination is: the hash of a category, whether a number exceeds a
#: border (NaN does not, or does), and whether a hash is a certain one.
HASH, ABOVE, ABOVE_OR_NAN, EQUAL = range(4)

#: Multiplies the hash of a combination before and after each part is added.
MULTIPLIER = 0x4906BA494954CB65

#: Most borders of a statistic, whose number above them is a byte.
MOST_BORDERS = 255


@dataclass(frozen=True, eq=False, repr=False)
class HashedCategories:
    """The categories of a forest, as read-only arrays.

    Parameters
    ----------
    is_category : ndarray of bool, shape (n_columns,)
        Which columns of the source's rows hold categories.
    part_offset : ndarray of int64, shape (n_combinations + 1,)
        The first part of each combination.
    part_kind : ndarray of uint8, shape (n_parts,)
        ``HASH``, ``ABOVE``, ``ABOVE_OR_NAN`` or ``EQUAL``.
    part_column, part_value : ndarray of int32, shape (n_parts,)
        The part's column; the bits of its float32 border, or its hash.
    key_offset : ndarray of int64, shape (n_combinations + 1,)
        The first key of each combination.
    key : ndarray of uint64
        Hashes of combinations, ascending in each one.
    statistic_offset : ndarray of int64, shape (n_combinations + 1,)
        The first statistic of each combination; the forest has a column for each.
    bucket : ndarray of uint8
        The statistics of each combination, shape (n_keys + 1, n_statistics): those of
        its keys, and those of all other hashes.
    """

    is_category: Bools
    part_offset: Int64s
    part_kind: NDArray[np.uint8]
    part_column: Int32s
    part_value: Int32s
    key_offset: Int64s
    key: Uint64s
    statistic_offset: Int64s
    bucket: NDArray[np.uint8]

    def __post_init__(self) -> None:
        for field in fields(self):
            array = np.ascontiguousarray(getattr(self, field.name)).view()
            if array.dtype != DTYPES[field.name] or array.ndim != 1:
                _refuse(f"{field.name} has {array.ndim} dimensions of {array.dtype}")
            array.flags.writeable = False
            object.__setattr__(self, field.name, array)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.arrays().values())

    def __repr__(self) -> str:
        """Return what tells it apart from others, for the hash of a forest."""
        return f"HashedCategories({sha256(*self.arrays().values()).hexdigest()})"

    def arrays(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in DTYPES}

    def packed(self) -> dict[str, Array]:
        """Return arrays as files have them; ascending keys have alike high bytes."""
        planes = self.key.view(np.uint8).reshape(-1, 8).T
        deflated = zlib.compress(planes.tobytes() + self.bucket.tobytes(), 1)
        packed = np.frombuffer(deflated, np.uint8)
        return {name: getattr(self, name) for name in PACKED[:-1]} | {"packed": packed}

    @classmethod
    def unpacked(cls, arrays: Mapping[str, Array]) -> HashedCategories:
        inflate = zlib.decompressobj()
        try:
            packed = arrays["packed"].tobytes()
            # of a file that nobody made to fill memory
            most = MOST_TIMES * len(packed) + (1 << 20)
            data = np.frombuffer(inflate.decompress(packed, most), np.uint8)
            if not inflate.eof:
                raise ValueError("cut, or more than keys can be")
            planes, bucket = np.split(data, [8 * int(arrays["key_offset"][-1])])
            key = np.ascontiguousarray(planes.reshape(8, -1).T).view(np.uint64).ravel()
        except (zlib.error, ValueError, IndexError):
            _refuse("the keys cannot be read")
        plain = {name: arrays[name] for name in PACKED[:-1]}
        return cls(**plain, key=key, bucket=bucket)

    @property
    def n_columns(self) -> int:
        """Number of columns of the source's rows."""
        return len(self.is_category)

    @property
    def n_features(self) -> int:
        """Number of columns of the forest's rows."""
        return self.n_columns + int(self.statistic_offset[-1])

    def shared(self, values: Array) -> Array:
        """Share what a combination contributes among its columns, as CatBoost does."""
        shares = values[..., : self.n_columns].copy()
        for i in range(self.n_columns, self.n_features):
            columns = self.columns_of[i]
            shares[..., columns] += values[..., i, None] / len(columns)
        return np.concatenate([shares, values[..., -1:]], axis=-1)

    @cached_property
    def columns_of(self) -> list[tuple[int, ...]]:
        """The columns of the source's rows that each column of the forest stands for.

        Of a combination, these are its categories: CatBoost's SHAP values count neither
        the borders nor the certain values that it has beside them.
        """
        columns: list[tuple[int, ...]] = [(i,) for i in range(self.n_columns)]
        sizes = np.diff(self.statistic_offset)
        for i, size in enumerate(sizes.tolist()):
            parts = slice(self.part_offset[i], self.part_offset[i + 1])
            hashes = self.part_kind[parts] == HASH
            read = self.part_column[parts]
            read = read[hashes] if hashes.any() else read
            columns += [tuple(sorted({*read.tolist()}))] * size
        return columns

    def validate(self) -> None:
        n_columns, n_parts = self.n_columns, len(self.part_kind)
        n_combinations = len(self.part_offset) - 1
        for name, count, end in (
            ("part_offset", n_combinations, n_parts),
            ("key_offset", n_combinations, len(self.key)),
            ("statistic_offset", n_combinations, None),
        ):
            offset = getattr(self, name)
            whole = len(offset) == count + 1 > 0 and offset[0] == 0
            whole = whole and end in (None, offset[-1])
            if not whole or (offset[1:] < offset[:-1]).any():
                _refuse(f"{name} does not run from 0 to {end}")
        sizes, counts = np.diff(self.statistic_offset), np.diff(self.key_offset) + 1
        # code finds statistics by numbers of 32 bits
        large = sizes.sum() >= 2**31 or len(self.bucket) >= 2**31
        if large or int(sizes @ counts) != len(self.bucket):
            _refuse(f"{len(self.bucket)} buckets are not those of its statistics")
        if len({len(self.part_kind), len(self.part_column), len(self.part_value)}) > 1:
            _refuse("the parts of combinations have different lengths")
        if n_parts and not 0 <= self.part_column.min() <= self.part_column.max() < (
            n_columns
        ):
            _refuse("a part of a combination is no column")
        hashes = np.isin(self.part_kind, (HASH, EQUAL))
        if (self.part_kind > EQUAL).any() or (
            self.is_category[self.part_column] != hashes
        ).any():
            _refuse("a part of a combination is of another kind than its column")
        rises = self.key[1:] > self.key[:-1]
        starts = self.key_offset[
            (self.key_offset > 0) & (self.key_offset < len(self.key))
        ]
        rises[starts - 1] = True
        if not rises.all():
            _refuse("the hashes of a combination do not ascend")


#: The dtype of each array, in order.
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "is_category": "?",
        "part_offset": "i8",
        "part_kind": "u1",
        "part_column": "i4",
        "part_value": "i4",
        "key_offset": "i8",
        "key": "u8",
        "statistic_offset": "i8",
        "bucket": "u1",
    }.items()
}

#: The arrays in files.
PACKED = *(name for name in DTYPES if name not in ("key", "bucket")), "packed"

#: How many times as many bytes the packed keys and buckets may be. Keys are hashes: a
#: key and a thousand statistics are 200 times the bytes that it takes.
MOST_TIMES = 256


def _refuse(what: str) -> NoReturn:
    raise InvalidModelError(
        f"of its categories, {what}; the model is damaged, save it again."
    )
