"""No answer without a comparison: each form of rows and method meets the model first.

Kernels are compared with the model before their first answer. This module does the same
for what stands before and behind them: the first rows of a form, and rows made of them
in the same form, are answered by compiled code and by the live model. If a bit differs,
the model answers such rows from then on, and a ``VerificationWarning`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from joblib import parallel_config

from skforge._compat import no_warnings
from skforge.engine.arrays import is_device_array
from skforge.exceptions import (
    SkforgeError,
    VerificationWarning,
    shortened,
    warn,
    with_article,
)
from skforge.prediction import counters
from skforge.prediction.differences import difference
from skforge.prediction.forms_met import FormsMet, Question
from skforge.prediction.made_rows import Made, known_columns, made_rows
from skforge.rows.frames import kind_of
from skforge.runtime.float_errors import own_arithmetic

Ask = Callable[[Any], Any]

#: Rows of a call that are compared, and rows that are also asked for one by one: fewer
#: of many columns, or behind steps.
ROWS, SINGLE, _CELLS, _BEHIND = 32, 16, 4096, 4

#: Errors of making rows, after which those of the call alone are compared. Tests have
#: none, so that each is seen.
UNMADE: tuple[type[Exception], ...] = (Exception,)


class DifferingRow(NamedTuple):
    """A row on which compiled code and the model differ, and their answers."""

    row: Any
    value: str
    expected: str

    @property
    def text(self) -> str:
        return _text_of(self.row)


class Door:
    """The forms of rows that a live model's predictor has met, by method."""

    def __init__(self) -> None:
        self._met: dict[Any, FormsMet] = {}
        #: Classes of tables that the model has answered.
        self._taken: set[str] = set()
        #: How many comparisons were made, and how many of them found a difference.
        self.compared = self.different = 0

    def agreed(self, method: Any, X: Any) -> bool | None:
        """Tell whether the model agreed on such rows; None if they are new."""
        met = self._met.get(method)
        return None if met is None else met.agreed(X)

    def answer(self, asked: Question, X: Any) -> Any:
        """Return compiled code's answer, or the model's if they have differed."""
        if is_device_array(X):  # a GPU computes exponentials of its own
            return asked.ours(X)
        if (agreed := self.agreed(asked.method, X)) is None:
            return self._first(asked, X)
        return asked.ours(X) if agreed else self._by_model(asked, X)

    def few(self, X: Any) -> Any:
        """Return the first rows, in their form: those that are compared."""
        return X if _is_mapping(X) else part_of(X, 0, ROWS)

    def _first(self, asked: Question, X: Any) -> Any:
        tally = asked.predictor.counters
        before = tally.of_thread(counters.LIBRARY)
        answer = asked.ours(X)
        if tally.of_thread(counters.LIBRARY) != before:
            return answer  # the model's own
        try:
            found = self.compare(asked, X, answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, no call may fail
            told = f"cannot be compared ({type(error).__name__}: {error})"
            found = DifferingRow(self.few(X), shortened(told), "")
        self._met.setdefault(asked.method, FormsMet()).add(X, found is None)
        asked.predictor.meets()
        if found is None:
            return answer
        self._tell(asked.predictor, _name_of(asked.method), X, found)
        return self._by_model(asked, X)

    def meet(self, asked: Question, X: Any) -> bool:
        """Compare rows that no call is about, and tell whether the model agreed."""
        met = self._met.setdefault(asked.method, FormsMet())
        if (agreed := met.agreed(X)) is None:
            found = self.compare(asked, X, None)
            agreed = found is None
            met.add(X, agreed)
            if found is not None:
                self._tell(asked.predictor, _name_of(asked.method), X, found)
        return agreed

    def _by_model(self, asked: Question, X: Any) -> Any:
        answer = asked.theirs(X)
        asked.predictor.counters.add(counters.LIBRARY, counters.rows_of(answer))
        return answer

    @own_arithmetic
    def compare(self, asked: Question, X: Any, answer: Any) -> DifferingRow | None:
        """Return the first difference on rows of ``X`` and on rows made of them."""
        predictor, method, ours, theirs, later = asked
        self.compared += 1
        source = predictor.source
        alone = not (source.before or source.members)  # steps may add by batches
        strict = alone and method != "predict_raw"  # which no model has
        few = self.few(X)
        uncounted = predictor.counters.uncounted
        ways: list[Ask] = [partial(uncounted, ours)]
        if later is not None:
            ways.append(partial(_if_any, partial(uncounted, later)))
        with ExitStack() as stack:
            stack.enter_context(no_warnings())  # those of the call itself are shown
            # threads of a forest add trees as they finish
            stack.enter_context(parallel_config("sequential"))
            for module in predictor.engine.modules:
                stack.enter_context(module.kernels.one())  # compile no other kernels
            batches = [Made(few, ())]
            with suppress(*UNMADE):
                batches += made_of(predictor, few)
            for batch in batches:
                for part, expected, error in accepted(theirs, batch, alone):
                    if error is not None and part is few:
                        if not strict or not self._takes(X, source, theirs):
                            return None
                        return _by_some(_refused, ways, few, error)
                    if strict:  # or it is not the model that answers
                        self._taken.add(kind_of(X))
                    if error is not None:
                        refused = partial(_by_some, _refused, ways)
                        found = refused(part, error) if strict else None
                    elif _is_mapping(X) and part is not few:
                        found = _mapped(ways[0], part, expected) if alone else None
                    else:
                        found = _by_some(_differs, ways, theirs, part, expected, alone)
                        if found is None and part is few and alone:
                            found = _of_call(X, few, answer, expected)
                    if found is not None:
                        return found
        return None

    def _takes(self, X: Any, source: Any, theirs: Ask) -> bool:
        """Tell whether a model takes such rows: skforge reads more than libraries."""
        if hasattr(X, "tocsr"):
            return _asked(theirs, type(X)(source.drawn(1, 0.0)))[2] is None
        if (kind := kind_of(X)) not in ("pyarrow", "batch", "polars"):
            return hasattr(X, "shape")  # values of lists and mappings may be categories
        if kind not in self._taken:
            forest = source.forest
            rows: Any = source.drawn(1, 0.0)[:, : forest.n_columns]
            names = forest.column_names or map(str, range(forest.n_columns))
            every = zip(names, rows.T, forest.is_category, strict=True)
            # numbers are no categories to CatBoost
            columns = {name: ["0"] if coded else x for name, x, coded in every}
            make = getattr(X, "from_pydict", type(X))
            return _asked(theirs, make(columns))[2] is None
        return True

    def _tell(self, predictor: Any, method: str, X: Any, found: DifferingRow) -> None:
        self.different += 1
        predictor.counters.add(counters.DIFFERENT, len_of(found.row))
        told = found.value  # alone, if the comparison itself has failed
        if found.expected:
            model = with_article(predictor.source.class_name)
            told = f"gives {told}, but {model} gives {found.expected}"
        warn(
            f"{method} of these rows ({type(X).__name__}) {told}. The model itself "
            "answers such rows from now on, at its own speed. Please report this, with "
            f"the model and this row: {found.text}",
            VerificationWarning,
        )


def _name_of(method: Any) -> str:
    return str(method if isinstance(method, str) else method[0])


def part_of(rows: Any, start: int, stop: int) -> Any:
    """Return some rows as they are: a slice of any container."""
    if hasattr(rows, "iloc"):
        return rows.iloc[start:stop]
    if kind_of(rows) in ("pyarrow", "batch"):
        return rows.slice(start, stop - start)
    if hasattr(rows, "tocsr") and rows.format != "csr":
        return type(rows)(rows.tocsr()[start:stop])
    if not isinstance(rows, (list, tuple)) and not hasattr(rows, "shape"):
        rows = list(rows)  # a deque has no slices
    return rows[start:stop]


def made_of(predictor: Any, X: Any) -> list[Made]:
    """Return rows in the form of ``X`` on which readers may err."""
    source, forest = predictor.source, predictor.forest
    known, names = predictor.known_columns, forest.column_names
    if source.before or source.members:  # columns may be others, or in another order
        names = getattr(source.model, "feature_names_in_", None)
        known = {i: column._replace(labels=()) for i, column in known.items()}
    return made_rows(X, known, names)


def known_of(source: Any) -> Any:
    """Return what a source's forest knows of the columns of users' rows."""
    names = enumerate(source.forest.category_names)
    labels = {i: tuple(labels) for i, labels in names if labels}
    with suppress(SkforgeError):  # codes that no library can compute
        codes = source.codes().items()
        labels |= {i: tuple(how["codes"]) for i, how in codes}
    return known_columns(source.forest, labels)


def accepted(
    theirs: Ask, batch: Made, alone: bool = True
) -> Iterator[tuple[Any, Any, Refusal | None]]:
    """Yield parts of rows with what the model answers, or its error.

    It is asked for the whole, and for the parts if it refuses that. Quick readers leave
    a batch with odd values to others, so the parts are apart unless answers may depend
    on the batch.
    """
    rows, ends = batch
    _, expected, error = _asked(theirs, rows)
    if len(ends) < 2 or (error is None and not alone):
        yield rows, expected, error
        return
    known = error is None and _by_row(expected, rows)
    for start, end in pairwise((0, *ends)):
        part = part_of(rows, start, end)
        yield (
            (part, _rows(expected, start, end), None) if known else _asked(theirs, part)
        )


class Refusal(NamedTuple):
    """The model's error, as text: its traceback would keep the predictor alive."""

    text: str
    is_ours: bool  # or tells of the machine, and not of the rows


def _asked(theirs: Ask, rows: Any) -> tuple[Any, Any, Refusal | None]:
    try:
        return rows, theirs(rows), None
    except Exception as error:  # noqa: BLE001 - libraries raise their own
        is_ours = isinstance(error, (SkforgeError, ImportError, MemoryError))
        text = f"{type(error).__name__}: {shortened(str(error), 300)}"
        return rows, None, Refusal(text, is_ours)


def _if_any(ask: Ask, rows: Any) -> Any:
    answer = ask(rows)
    return NotImplemented if answer is None else answer


def _by_some(
    check: Callable[..., DifferingRow | None], ways: list[Ask], *given: Any
) -> DifferingRow | None:
    return next(filter(None, (check(way, *given) for way in ways)), None)


def _refused(ours: Ask, rows: Any, error: Refusal) -> DifferingRow | None:
    """Tell that compiled code answers rows that the model refuses."""
    # scikit-learn would write to the rows of some frames
    if error.is_ours or "read-only" in error.text:
        return None
    try:
        answer = ours(rows)
    except Exception:  # noqa: BLE001 - as it should
        return None
    if answer is NotImplemented:
        return None
    return DifferingRow(rows, _text_of(answer), error.text)


def _is_mapping(rows: Any) -> bool:
    return isinstance(rows, Mapping) and not hasattr(rows, "tocsr")


def len_of(rows: Any) -> int:
    if _is_mapping(rows):
        return 1
    shape = getattr(rows, "shape", None)
    return int(shape[0]) if shape else len(rows)


def _differs(
    ours: Ask, theirs: Ask, rows: Any, expected: Any, alone: bool
) -> DifferingRow | None:
    """Compare answers to rows, and to some of them one by one.

    The model is asked for just these rows before a difference is told: NumPy sums the
    values of one row in another order than those of several, and parts of lists and of
    sparse matrices may be read otherwise than the whole.
    """
    n_rows = len_of(rows)
    width = getattr(rows, "shape", (0, 1))[-1]
    most = min(SINGLE if alone else _BEHIND, n_rows, 1 + _CELLS // max(1, width))
    singles = range(most if n_rows > 1 and _by_row(expected, rows) else 0)
    for start, end in ((0, n_rows), *((i, i + 1) for i in singles)):
        part = rows if end - start == n_rows else part_of(rows, start, end)
        wanted = expected if part is rows else _rows(expected, start, end)
        try:
            answer = ours(part)
        except Exception as error:  # noqa: BLE001 - where the model answers
            if _asked(theirs, part)[2] is not None:  # which may take the whole alone
                continue
            text = f"{type(error).__name__}: {error}"
            return DifferingRow(part, shortened(text, 300), _text_of(wanted))
        if answer is NotImplemented:
            continue
        found = compared_answers(part, answer, wanted)
        if found and (found := compared_answers(part, answer, theirs(part))):
            return found
    return None


def _mapped(ours: Ask, rows: list[Any], expected: Any) -> DifferingRow | None:
    """Compare mappings one by one, with keys in either order, and as columns."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    arrays = {key: np.array(values) for key, values in columns.items()}
    every = [(columns, expected), (arrays, expected)]
    for i, row in enumerate(rows if _by_row(expected, rows) else ()):
        given = dict(reversed(row.items())) if i % 2 else row
        every.append((given, _rows(expected, i, i + 1)))
    for given, wanted in every:
        try:
            answer = ours(given)
        except Exception as error:  # noqa: BLE001 - where the model answers
            text = shortened(f"{type(error).__name__}: {error}", 300)
            return DifferingRow(given, text, _text_of(wanted))
        if found := compared_answers(given, answer, wanted):
            return found
    return None


def compared_answers(
    rows: Any, answer: Any, expected: Any, order: bool = True
) -> DifferingRow | None:
    answers, wanted = _parts(answer), _parts(expected)
    if len(answers) != len(wanted):
        return DifferingRow(rows, _text_of(answer), _text_of(expected))
    if (found := difference(answers, wanted)) is None:
        ways = [*map(_order, answers)], [*map(_order, wanted)]
        same = all(a == b or "" in (a, b) for a, b in zip(*ways, strict=True))
        if same or not order:
            return None
        return DifferingRow(rows, f"order {ways[0]}", f"order {ways[1]}")
    first = int(found.rows[0]) if len(found.rows) else 0
    alone = _is_mapping(rows) or first >= len_of(rows)
    row = rows if alone else part_of(rows, first, first + 1)
    return DifferingRow(row, found.value, found.expected)


def _parts(answer: Any) -> list[Any]:
    """Return what an answer consists of: arrays that can be compared bit by bit."""
    if isinstance(answer, (list, tuple)):
        return [part for one in answer for part in _parts(one)]
    if hasattr(answer, "tocsr"):
        matrix = answer.tocsr()
        return [matrix.toarray()]
    return [np.atleast_1d(np.asarray(answer))]


def _order(answer: Any) -> str:
    """Return how an answer lies in memory: sums over its rows depend on that."""
    if answer.ndim != 2 or min(answer.shape) < 2:
        return ""
    return "C" * answer.flags.c_contiguous + "F" * answer.flags.f_contiguous


def _by_row(answer: Any, rows: Any) -> bool:
    """Tell whether the first axis of an answer is that of rows."""
    parts = answer if isinstance(answer, list) else [answer]
    return all(len(np.shape(x)) and len_of(x) == len_of(rows) for x in parts)


def _of_call(X: Any, few: Any, answer: Any, expected: Any) -> DifferingRow | None:
    """Compare what the call itself has answered to its first rows."""
    if answer is None or not (few is X or _by_row(answer, X)):
        return None
    given = answer if few is X else _rows(answer, 0, ROWS)
    return compared_answers(few, given, expected)


def _rows(answer: Any, start: int, stop: int) -> Any:
    if isinstance(answer, list):
        return [_rows(part, start, stop) for part in answer]
    part = part_of(answer, start, stop)
    by_column = isinstance(answer, np.ndarray) and _order(answer) == "F"
    return np.asfortranarray(part) if by_column else part


def _text_of(value: Any) -> str:
    with suppress(Exception):
        if hasattr(value, "to_dict") and hasattr(value, "dtypes"):
            dtypes = {str(k): str(v) for k, v in value.dtypes.items()}
            records = value.to_dict("records")
            return shortened(f"{records!r} of dtypes {dtypes!r}", 800)
        if hasattr(value, "tocsr"):
            value = value.toarray()
        if hasattr(value, "to_pylist"):
            value = value.to_pylist()
        if hasattr(value, "dtype"):
            return shortened(f"{value.tolist()!r} of {value.dtype}", 800)
    return shortened(repr(value), 800)
