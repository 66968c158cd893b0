"""Verify an exported object, in this process or by ``check.csv`` and the C example."""

from __future__ import annotations

import csv
import ctypes
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Uint64s
from skforge.engine.entry.hashing_routines import KM
from skforge.engine.explanations.contributions import ContributionKernels
from skforge.engine.rows import forest_rows
from skforge.exceptions import TargetError, VerificationError
from skforge.exporters.contents import ERRORS, OUTPUT_OF, Library
from skforge.forest import categories, reference
from skforge.forest.categories import HashedCategories
from skforge.forest.encoder_tables import known_hashes
from skforge.forest.forest import Forest
from skforge.modules.compiled import compile_forest
from skforge.outputs.answers import of_scores
from skforge.prediction.answers import as_array
from skforge.rows.readers import reader_of
from skforge.runtime.loading import load_object

#: Number of rows compared, some on thresholds; the maximum number of values, which
#: limits wide rows (kernels of larger batches are then not run); and the minimum rows.
CHECKED_ROWS, CHECKED_VALUES, FEWEST_ROWS = 600, 1 << 24, 64
#: The same of ``check.csv``.
LISTED_ROWS, LISTED_VALUES, FEWEST_LISTED = 100, 1 << 16, 4


@dataclass(frozen=True, slots=True, eq=False)
class CheckSample:
    """Rows on and around a forest's thresholds, and what it makes of them.

    ``limit`` is by how much each row's sums may be off. ``cells`` are what the first
    rows are encoded from, of a model with categories: numbers and texts.
    """

    rows: Array
    leaves: Array
    raw: Array
    limit: Array
    cells: NDArray[np.object_]


def draw_sample(library: Library) -> CheckSample:
    forest, reduction = library.forest, library.reduction
    most = max(FEWEST_ROWS, CHECKED_VALUES // max(1, forest.n_features))
    with np.errstate(over="ignore"):  # thresholds may be the largest floats
        rows = reference.draw_rows(forest, min(CHECKED_ROWS, most), 0, 0.05)
    cells = rows[:0].astype(object)
    if forest.hashed is not None:
        cells = draw_cells(forest.hashed, rows[: len(rows) // 2])
        rows[: len(cells)] = reader_of(forest).rows(cells)
    leaves = reference.reference_leaves(forest, rows)
    if reduction == "reproducible":  # every schedule gives the same bits
        raw = compile_forest(forest, reduction=reduction).predict_raw(rows)
    else:
        raw = reference.reference_raw(forest, rows)
    limit = np.zeros(len(rows))
    if reduction == "fast":
        limit = reference.sum_limits(forest, rows, reduction)
    return CheckSample(rows, leaves, raw, limit, cells)


def verify(library: Library, binary: bytes, sample: CheckSample) -> bool:
    """Compare every function, kernel and variant that runs here with the reference.

    With ``reduction="fast"``, sums may differ by what the mode allows; other results
    are compared with values computed from the library's own sums. Return False if no
    variant runs on this machine; raise ``VerificationError`` for a difference.
    """
    here = []
    for number, variant in enumerate(library.variants):
        with suppress(TargetError):
            variant.target.check_runs_here()
            here.append(number)
    if not here:
        return False
    loaded = _LoadedLibrary(library, binary)
    forest, rows, leaves = library.forest, sample.rows, sample.leaves
    exact = np.zeros(len(rows))
    try:
        if library.categories:
            encoded = loaded.encode(sample.cells)
            if encoded.tobytes() != rows[: len(encoded)].tobytes():
                raise _fault("encode of the library differs from the model")
            loaded.check_refusals(sample.cells[:1])
        for number in here:
            variant = library.variants[number]
            loaded.select(number)
            contributed = ContributionKernels(forest, variant.target)
            lasts = {last or len(rows) for last, _ in variant.ranges[""]}
            for size in sorted({min(last, len(rows)) for last in lasts}):
                sums = loaded.predict("predict_raw", rows[:size])
                for function in library.results:
                    result, gap = loaded.predict(function, rows[:size]), exact
                    if function == "predict_raw":
                        wanted, gap = sample.raw[:size], sample.limit
                    elif function == "predict_contribs":
                        given = forest_rows(forest, rows[:size])
                        wanted = contributed.values(given, 1)
                    else:
                        wanted = expected(forest, function, sums, leaves[:size])
                    if not agrees(result, wanted, gap[:size]):
                        raise _fault(
                            f"{function} of the library for {variant.target.cpu} "
                            f"differs from the model on {size} rows"
                        )
    finally:
        loaded.close()
    return True


def check_text(library: Library, sample: CheckSample) -> str:
    """Return ``check.csv``: rows and results, in the digits that their bits need."""
    forest, results = library.forest, library.results
    width = forest.n_features + sum(results[name][1] for name in library.listed)
    n = min(LISTED_ROWS, max(FEWEST_LISTED, LISTED_VALUES // width))
    rows, leaves, raw = sample.rows[:n], sample.leaves[:n], sample.raw[:n]
    names = [f"column {k}" for k in range(forest.n_columns)]
    header = [*(forest.column_names or names)]
    parts = [sample.cells[:n] if library.categories else rows]
    for function in library.listed:
        values = raw
        if function != "predict_raw":
            values = expected(forest, function, raw, leaves)
        parts.append(np.asarray(values).reshape(len(rows), -1))
        each = [f"{function} {k}" for k in range(results[function][1])]
        header += each if len(each) > 1 else [function]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([" ".join(name.split()) for name in header])
    for row in np.column_stack(parts).tolist():
        writer.writerow("" if cell != cell else cell for cell in row)
    return text.getvalue()


def tolerance(
    library: Library, sample: CheckSample, function: str
) -> tuple[float, float]:
    """Return how far results may differ: but for raw scores, as two ``exp`` may."""
    dtype, _ = library.results[function]
    if function == "predict_raw":
        return float(sample.limit.max(initial=0.0)), 0.0
    exact = dtype[0] == "i" or not library.libm
    return 0.0, 0.0 if exact else 16 * float(np.finfo(dtype).eps)


def _fault(what: str) -> VerificationError:
    return VerificationError(f"{what}; nothing was written. Please report this.")


class _LoadedLibrary:
    def __init__(self, library: Library, binary: bytes) -> None:
        self._name, self._results = library.name, library.results
        self._suffix = "f32" if library.row_dtype == "float32" else "f64"
        self._categories, self._width = library.categories, library.forest.n_features
        functions = [f"{function}_{self._suffix}" for function in self._results]
        functions += ["open", "close", "select"] + ["encode"] * bool(self._categories)
        symbols = [f"{library.name}_{function}" for function in functions]
        self._library = load_object(binary, symbols)
        self._model = ctypes.c_void_p()
        self._call("open", 1, ctypes.byref(self._model))

    def _call(self, function: str, *values: Any, gives: Any = ctypes.c_int) -> None:
        words = (ctypes.c_int64(v) if isinstance(v, int) else v for v in values)
        address = self._library[f"{self._name}_{function}"]
        if code := ctypes.CFUNCTYPE(gives)(address)(*words):
            raise _fault(f"the library's {function} returned error {code}")

    def select(self, variant: int) -> None:
        self._call("select", self._model, variant)

    def predict(self, function: str, rows: Array) -> Array:
        dtype, columns = self._results[function]
        out = np.empty((len(rows), columns), dtype)
        where = rows.ctypes.data, len(rows), rows.shape[1], 1, out.ctypes.data
        self._call(f"{function}_{self._suffix}", self._model, *where)
        return out

    def encode(
        self, cells: NDArray[np.object_], count: int | None = None, null: bool = False
    ) -> Array:
        """Return encoded rows of cells; ``count`` and a null text ask for errors."""
        rows = np.empty((len(cells), self._width), np.float32)
        numbers, texts = cells.copy(), cells[:, self._categories].ravel().tolist()
        numbers[:, self._categories] = 1.5  # ignored
        numbers = numbers.astype(np.float32)
        given = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
        if null:
            given[len(texts) - 1] = None
        n = len(cells) if count is None else count
        self._call("encode", n, numbers.ctypes.data, given, rows.ctypes.data)
        return rows

    def check_refusals(self, cells: NDArray[np.object_]) -> None:
        """Ask for the errors of encode: a null text, and fewer rows than none."""
        for how, name in (({"null": True}, "NULL"), ({"count": -1}, "COUNT")):
            code = [*ERRORS].index(f"ERROR_{name}")
            try:
                self.encode(cells, **how)
            except VerificationError as error:
                if f"error {code};" in str(error):
                    continue
            raise _fault(f"encode of the library does not return error {code}")

    def close(self) -> None:
        self._call("close", self._model, gives=None)


def expected(forest: Forest, function: str, raw: Array, leaves: Array) -> Any:
    if function == "apply":
        return forest.source_node[leaves].astype(np.int32)
    with np.errstate(all="ignore"):
        return as_array(of_scores(forest.answers, OUTPUT_OF[function], raw))


def agrees(result: Array, wanted: Any, limit: Array) -> bool:
    wanted = np.asarray(wanted).reshape(result.shape)
    if result.dtype.kind == "f":  # NaN may have either sign
        result, wanted = (np.where(np.isnan(x), np.nan, x) for x in (result, wanted))
    with np.errstate(all="ignore"):
        return not len(reference.differing_rows(result, wanted, limit))


# ------------------------------------------------------------ rows with categories

#: How many known categories of all columns are drawn, and of one column at least.
_MOST_KNOWN, _FEWEST_KNOWN = 256, 4
#: The longest text drawn that the model may not know.
_LONGEST = 200


def draw_cells(hashed: HashedCategories, rows: Array) -> NDArray[np.object_]:
    """Return rows of numbers and texts, as callers have them.

    Numbers are those of the forest's rows, or borders of combinations. The model knows
    most texts.
    """
    random = np.random.default_rng(1)
    numbers = rows[:, : hashed.n_columns].copy()
    borders = np.flatnonzero(
        np.isin(hashed.part_kind, (categories.ABOVE, categories.ABOVE_OR_NAN))
    )
    for row in np.flatnonzero(random.random(len(rows)) < 0.3) if len(borders) else ():
        part = random.choice(borders)
        border = hashed.part_value[part : part + 1].view(np.float32)
        numbers[row, hashed.part_column[part]] = border[0]
    cells = numbers.astype(object)
    places = np.flatnonzero(hashed.is_category)
    most = max(_FEWEST_KNOWN, _MOST_KNOWN // max(1, len(places)))
    known = known_hashes(hashed)
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


def _text_of(wanted: int, random: np.random.Generator) -> str:
    """Return a text of 16 characters that has a hash of 32 bits.

    With its last 8 bytes, each hash of 64 bits has one first half, and some of these
    are texts. The hash is in :mod:`~skforge.engine.entry.hashing_routines`.
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


def _mixed(x: Uint64s) -> Uint64s:
    return x ^ x >> np.uint64(47)
