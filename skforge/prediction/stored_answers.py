"""What a model that is kept without its library will answer, compared beforehand.

It is asked for the rows that ``fit`` saw, and for rows made of them, in the forms in
which services have rows: before :func:`skforge.save` writes a byte, and before
``drop_estimator`` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

from joblib import parallel_config

from skforge._compat import no_warnings
from skforge.exceptions import SkforgeError, VerificationError
from skforge.prediction import door
from skforge.prediction.door import (
    Ask,
    accepted,
    compared_answers,
    len_of,
    made_of,
    part_of,
)
from skforge.prediction.made_rows import Made
from skforge.prediction.predictor import METHODS
from skforge.prediction.stored_forms import (
    IF_IMPORTED,
    NARROWER,
    changed,
    main_forms,
    other_forms,
)
from skforge.rows.frames import is_pandas
from skforge.runtime.float_errors import own_arithmetic

#: Methods of files whose answers are compared.
_METHODS = (*METHODS, "predict_log_proba", "apply", "transform")
#: Those that tell most of how rows were read, first.
_TELLING = (
    *("predict_proba", "decision_function", "score_samples", "transform"),
    *("predict", "apply"),
)


@own_arithmetic
def compare_stored(fast: Any, stored: Any) -> dict[str, list[str]]:
    """Compare a stored model with the ``CompiledForest`` that it was made of.

    Returns
    -------
    dict of str -> list of str
        By form of rows, the methods that gave equal bits. What is left to the model,
        or refused by it, is not among them, nor forms of packages that happen to be
        imported.

    Raises
    ------
    VerificationError
        If an answer differs, or raises where the model answers.
    """
    state = vars(stored)
    shadow = {name: state.pop(name) for name in ("_shadow",) if name in state}
    live = vars(fast._compiled())
    mappings = live.pop("_mappings", None)  # which warns of further keys once
    with ExitStack() as stack:
        stack.enter_context(no_warnings())
        # threads of a forest add trees as they finish
        stack.enter_context(parallel_config("sequential"))
        for model in (fast, stored):  # fit has compared the kernels: one each will do
            for module in model._compiled().engine.modules:
                stack.enter_context(module.kernels.one())
        compared = _compared(fast, stored)
    if (predictor := state.pop("_predictor", None)) is not None:
        predictor.retire()  # it has counted
    state.update(shadow)
    live.pop("_mappings", None)
    live.update({} if mappings is None else {"_mappings": mappings})
    return compared


def _compared(fast: Any, stored: Any) -> dict[str, list[str]]:
    """Compare forms of most services by all methods, and other forms by one.

    Methods differ in what they make of scores, and forms in how rows are read.
    """
    compared: dict[str, list[str]] = {}
    predictor = fast._compiled()
    seen = predictor.sample
    if seen is None:
        seen = predictor.source.as_given(predictor.source.drawn(16, 0.0)[:16])
    if seen is None:
        return compared
    made: list[Made] = []
    with suppress(*door.UNMADE):
        made = made_of(predictor, seen)
    for form, change in main_forms(predictor, seen):
        for name, batches in ((form, [Made(seen, ())]), (f"{form}, made", made)):
            parts = [part for batch in batches for part in changed(change, batch)]
            for method in _METHODS:
                if not hasattr(fast, method) or not hasattr(stored, method):
                    continue
                ask = partial(predictor.counters.uncounted, getattr(fast, method))
                case = Case(ask, stored, name, method)
                if any([case.agrees(part) for part in parts]):
                    compared.setdefault(name, []).append(method)
    methods = {*chain(*compared.values())}
    for method in [name for name in _TELLING if name in methods][:1]:
        batch = made[0] if made else Made(seen, ())
        agreed = _agreed_forms(predictor, stored, method, seen, batch)
        # equal fits save equal bytes, whatever else is imported
        named = [form for form in agreed if is_pandas(seen) and form not in IF_IMPORTED]
        compared.update({form: [method] for form in named})
    return compared


def _agreed_forms(
    predictor: Any, stored: Any, method: str, seen: Any, batch: Made
) -> list[str]:
    """Return the forms, of those that few services have, in which answers agreed."""
    own = partial(predictor.own, method, {})
    if (taken := _taken(own, batch)) is None:
        return []
    batch, answer = taken
    agreed = []
    for form, change in other_forms(predictor, seen):
        case = Case(own, stored, form, method)
        known = None if form in NARROWER else answer
        if any([case.agrees(part, known) for part in changed(change, batch)]):
            agreed.append(form)
    return agreed


def _taken(own: Ask, batch: Made) -> tuple[Made, Any] | None:
    """Return the first parts of rows, as far as the model takes them, and its answer.

    Parts are in order: infinities, which many models refuse, are the last ones.
    """
    ends = batch.ends or (len_of(batch.rows),)
    for i in range(len(ends), 0, -1):
        with suppress(Exception):  # the library's own
            rows = part_of(batch.rows, 0, ends[i - 1])
            return Made(rows, ends[:i]), own(rows)
    return None


class Case(NamedTuple):
    """A form of rows and a method, by which a stored model is compared."""

    ask: Ask
    stored: Any
    form: str
    method: str

    def agrees(self, batch: Made, known: Any = None) -> bool:
        """Tell whether some rows were answered, and as the model does.

        ``known`` is the model's answer to the same values in a form that it takes: a
        stored model reads some forms that the library refuses.
        """
        agreed = refused = False
        for i, (part, expected, error) in enumerate(accepted(self.ask, batch)):
            refused |= error is not None
            if error is None:
                for given, wanted in _with_one(part, expected, first=i == 0):
                    agreed |= self._same(given, wanted)
        if agreed or not refused or known is None or isinstance(batch.rows, Mapping):
            return agreed
        for start, end in pairwise((0, *batch.ends)):
            part = part_of(batch.rows, start, end)
            agreed |= self._same(part, rows_of(known, start, end), refused)
        return agreed

    def _same(self, rows: Any, expected: Any, refused: bool = False) -> bool:
        method = self.method
        try:
            answer = getattr(self.stored, method)(rows)
        except SkforgeError:  # such rows need the model
            return False
        except Exception as error:
            # the model may refuse them, too; predict_raw is none of its methods
            if refused or method == "predict_raw":
                return False
            raise VerificationError(
                f"{_WRONG.format(method=method, form=self.form)} it raises "
                f"{type(error).__name__}: {error}. {_NOTHING}"
            ) from error
        order = method != "predict_raw"  # of which libraries say nothing
        found = compared_answers(rows, answer, expected, order)
        # parts of lists may be read otherwise than the whole
        if found and not refused:
            found = compared_answers(rows, answer, self.ask(rows), order)
        if found:
            raise VerificationError(
                f"{_WRONG.format(method=method, form=self.form)} it gives {found.value}"
                f" where the model gives {found.expected}, for {found.text}. {_NOTHING}"
            )
        return True


def _with_one(rows: Any, expected: Any, first: bool) -> Iterator[tuple[Any, Any]]:
    """Yield rows, and the first of them alone, which other code may read."""
    yield rows, expected
    if not first or isinstance(rows, Mapping) or len_of(rows) < 2:
        return
    one = part_of(rows, 0, 1)
    mapped = isinstance(one, list) and isinstance(one[0], Mapping)
    yield one[0] if mapped else one, rows_of(expected, 0, 1)


def rows_of(answer: Any, start: int, stop: int) -> Any:
    if isinstance(answer, list):  # of several targets
        return [rows_of(part, start, stop) for part in answer]
    return part_of(answer, start, stop)


_WRONG = "Without its library, the model would answer {method} of {form} otherwise:"
_NOTHING = "Nothing was saved. Please report this model; joblib.dump keeps it whole."
