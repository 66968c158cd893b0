"""How a predictor of a live model lets new forms of rows meet the model first.

What is compared, and on which rows, is said in :mod:`skforge.prediction.door`, which a
loaded model never imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.engine.arrays import into
from skforge.exceptions import VerificationError, VerificationWarning, warn
from skforge.forest.frames import kind_of
from skforge.prediction import blocks
from skforge.prediction.forms_met import KnownForm, Question, recogniser
from skforge.runtime.mappings import is_mapped

if TYPE_CHECKING:
    from skforge.prediction.door import Door

#: An array of the form of objects.
_NO_OBJECTS = np.empty((0, 0), object)
#: Rows that have no form beyond the class or dtype by which their routes are found.
_WHOLE = np.ndarray, dict
#: Rows whose form is recognised in less time than they are checked.
_FRAMES = "pandas", "polars", "pyarrow"
#: Forms of a class of rows that are recognised.
_MOST = 8
Asking = TypeVar("Asking", bound=Callable[..., Any])


def at_door(ask: Asking) -> Asking:
    """Let rows of a new form meet the model before a method first answers them."""
    name = ask.__name__

    @wraps(ask)
    def asked(
        self: AtDoor, X: Any, n_jobs: int | None = None, *given: Any, **how: Any
    ) -> Any:
        def ours(rows: Any) -> Any:
            return ask(self, rows, n_jobs, *given, **how)

        if self.door is None:
            return ours(X)
        question = Question(self, (name,), ours, partial(self.own, name, {}))
        return self.door.answer(question, X)

    return cast(Asking, asked)


def _same(answer: Any, other: Any) -> bool:
    from skforge.prediction.differences import difference

    alike = getattr(answer, "strides", None) == getattr(other, "strides", None)
    return alike and difference(answer, other) is None


class AtDoor:
    """A base of ``ForestPredictor``."""

    __slots__ = ()

    #: Compares each form of rows with a live model; None where nothing is compared.
    door: Door | None
    #: By method, whether answers that were written over their own rows agreed.
    agreed_over: dict[str, bool]
    offered: dict[Any, Any]
    source: Any
    module: Any

    def open_door(self: Any) -> None:
        """Compare each form of rows and method with the live model from now on."""
        if self.source.model is not None and self.module.reduction == "exact":
            from skforge.prediction.door import Door

            self.door = Door()
            for method, entry in self.entries.items():  # those that fit has compiled
                ours = method != "predict_contribs"  # which models do not have
                direct = ours and entry is not None and self._direct
                if direct and not self.arrays_meet(method, entry):
                    self.entries[method] = None

    def meets(self: Any) -> None:
        """Find methods anew, as rows of a form have met the model."""
        if self._of_objects:  # whose entries wait for it
            self.offered.clear()

    def own(self: Any, method: str, params: Mapping[str, Any], X: Any) -> Any:
        """Return the live model's own answer."""
        from skforge.prediction.of_source import of_source

        return of_source(self, method, self.framed(X), params)

    @cached_property
    def known_columns(self) -> Any:
        from skforge.prediction.door import known_of

        return known_of(self.source)

    def takes_objects(self, method: str) -> bool:
        """Tell whether an entry may take arrays of objects from users."""
        return self.door is None or bool(self.door.agreed(method, _NO_OBJECTS))

    def door_routes(self, method: str, X: Any) -> tuple[list[Any], bool]:
        """Return the routes to try first, and whether they leave no row to others."""
        whole = type(X) in _WHOLE
        if self.door is None:
            known = kind_of(X) in _FRAMES or (type(X) is list and not is_mapped(X))
            return [type(self).by_form] if known else [], False
        if whole and self.door.agreed(method, X):
            return [], False
        return [type(self).by_form], whole

    def over_rows(
        self: Any,
        write: Callable[..., Any],
        method: str,
        X: Any,
        n_jobs: int | None,
        out: Any,
    ) -> Any:
        """Write an answer to ``out``; compare the first one that lies over its rows.

        Those rows are gone afterwards, so they are answered before, apart.
        """
        arrays = isinstance(X, np.ndarray) and isinstance(out, np.ndarray)
        over = arrays and self.door is not None and np.may_share_memory(X, out)
        agreed = self.agreed_over.get(method) if over else True
        if agreed:
            return write(method, X, n_jobs, out)
        wanted = self.answer(method, X, n_jobs)
        if agreed is None:
            from skforge.prediction.differences import difference

            answer = write(method, X, n_jobs, out)
            found = difference([answer], [wanted])
            self.agreed_over[method] = found is None
            if found is None:
                return answer
            warn(
                f"{method} with an out that lies over the rows gives {found.value} for "
                f"row {found.rows[0]}, and without out {found.expected}. Such answers "
                "are copied to out from now on. Please report this, with the model.",
                VerificationWarning,
            )
        return into(out, wanted)

    def by_form(self: Any, method: str, X: Any, n_jobs: int | None) -> Any:
        """Answer rows of a known form; let those of a new one meet the model.

        None if other routes are to answer: the rows have met it, and agreed.
        """
        key = method, type(X)
        forms = self.known_forms.setdefault(key, [])
        calls: Iterator[int] = count(1)
        for at, form in enumerate(forms):
            same, read, entry, warning, calls_of = form
            if same(X):
                if at:  # the form of the last call comes first
                    forms = [form, *forms[:at], *forms[at + 1 :]]
                    self.known_forms[key] = forms
                if entry is None and calls_of and n_jobs == self.entry_jobs:
                    n_calls = next(calls_of)
                    if n_calls & (n_calls - 1) == 0:  # look again ever more rarely
                        self.known_forms[key] = forms = forms[1:]
                        calls = calls_of
                        break
                if entry is None or n_jobs != self.entry_jobs:
                    return None
                answer = None if (rows := read(X)) is None else entry(rows)
                if warning and answer is not None:
                    warn(warning)
                return answer
        door, ours = self.door, partial(self._past_door, method, n_jobs)
        if door is not None and not door.agreed(method, X):
            later = partial(self._by_known, method, n_jobs)
            theirs = partial(self.own, method, {})
            return door.answer(Question(self, method, ours, theirs, later), X)
        if len(forms) >= _MOST:
            return None
        answer = ours(X)
        uncounted = self.counters.uncounted
        if (known := self._known_form(method, X, n_jobs, uncounted)) is not None:
            form, given = known
            if given is None:
                form = form._replace(calls=calls)
            elif not _same(given, answer):
                form = form._replace(entry=None)
            forms.append(form)
        return answer

    def _known_form(
        self: Any, method: str, X: Any, n_jobs: int | None, ask: Callable[..., Any]
    ) -> tuple[KnownForm, Any] | None:
        """Return the form of rows, and the entry's answer; None until one was made."""
        at = self.of_rows(X) if self.source.has_forms else self
        if method not in at.entries or n_jobs != at.entry_jobs or type(X) in _WHOLE:
            return None
        entry, found = at.entries[method], None
        if entry is not None and not at._of_objects:
            found = at.source.reader(X, blocks.MOST_VALUES)
        rows = None if found is None else found[0](X)
        answer = None if rows is None else ask(entry, rows)
        if found is None or answer is None:
            return KnownForm(recogniser(X), None, None), None
        return KnownForm(recogniser(X), found[0], entry, found[1]), answer

    def _by_known(self: Any, method: str, n_jobs: int | None, X: Any) -> Any:
        """Answer as later calls of rows of this form do; None: as first ones."""
        known = self._known_form(method, X, n_jobs, lambda entry, rows: entry(rows))
        return None if known is None else known[1]

    def _past_door(self: Any, method: str, n_jobs: int | None, X: Any) -> Any:
        form = method, X.dtype if type(X) is np.ndarray else type(X)
        for route in self._find_routes(form, X, n_jobs, at_door=False):
            if (answer := route(self, method, X, n_jobs)) is not None:
                return answer
        return None

    def arrays_meet(self: Any, method: str, entry: Callable[[Any], Any]) -> bool:
        """Compare the arrays that an entry takes from Python with the model."""
        if self.door is None:
            return True

        def ours(given: Any) -> Any:
            answer = entry(given)  # None: it declines some sizes
            return self._by_kernels(method, given, None) if answer is None else answer

        rows: Array = self.source.drawn(1, 0.0)[:1]
        theirs = partial(self.own, method, {})
        known = [rows.astype(d) for d in (np.float32, np.float64)]
        asked = partial(self.counters.uncounted, entry)
        taken = [part for part in known if asked(part) is not None]
        question = Question(self, method, ours, theirs)
        return all([self.door.meet(question, x) for x in taken])

    def asked_with(self: Any, method: str, params: Mapping[str, Any]) -> Any:
        """Return the name of a call with arguments; rounds are of few kinds."""
        rounds = self.module.parts[0].rounds
        most = 0 if rounds is None else rounds.n

        def kind(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return tuple(map(kind, value))
            if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
                return int(np.sign(value)) + (value > most)
            return value if isinstance(value, (str, type(None))) else repr(value)

        return method, *((name, kind(params[name])) for name in sorted(params))

    def stages_meet(self: Any, method: str, X: Any, params: Mapping[str, Any]) -> bool:
        """Compare stages before they are first yielded; tell whether they agreed."""
        if self.door is None:
            return True
        name = self.asked_with(f"staged_{method}", params)
        some = self.some_stages()

        def ours(rows: Any) -> list[Any]:
            stages = [*self.staged_by_kernels(method, rows, None, params)]
            return [stages[i - 1] for i in some] if some else stages

        def theirs(rows: Any) -> list[Any]:
            given = self.framed(rows)
            return [*self.staged_by_library(method, given, params, some)]

        own = partial(self.counters.uncounted, theirs)
        with suppress(Exception):  # the call itself has the same error
            return self.door.meet(Question(self, name, ours, own), self.door.few(X))
        return True

    def numbers_meet(self: Any, X: Any) -> None:
        """Compare raw scores of rows before they are explained, as few models do that.

        Raise ``VerificationError`` if the model reads such rows otherwise.
        """
        if self.door is None or self.door.agreed("predict_raw", X):
            return
        with suppress(Exception):  # rows that are refused have their own error
            self.answer("predict_raw", self.door.few(X), None)
        if self.door.agreed("predict_raw", X) is False:
            raise VerificationError(
                "the raw scores of these rows differ from the model's, so they are not "
                "explained. A VerificationWarning has shown a row; please report it."
            )
