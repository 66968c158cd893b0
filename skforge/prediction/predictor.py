"""A compiled module behind its source's methods: rows in, the source's answers out.

A predictor is built up in five files, each of which needs those before it alone:
``of_rows`` reads rows, ``of_kernels`` answers by the engine, ``at_door`` compares with
the model, ``of_entries`` has compiled entries, and this one finds the way. ``of_trees``
and ``of_rounds`` are functions of a predictor: other questions than its answers;
``of_out`` writes answers to arrays of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from skforge.compiler.backend import on_device
from skforge.engine.arrays import is_device_array
from skforge.exceptions import warn
from skforge.prediction import blocks, counters
from skforge.prediction.at_door import at_door
from skforge.prediction.forms_met import KnownForm, Question, recogniser
from skforge.prediction.of_entries import OfEntries
from skforge.prediction.of_rows import NO_PARAMS, Route
from skforge.rows.frames import kind_of
from skforge.runtime.mappings import is_mapped
from skforge.sources.base import METHODS as OF_SCORES

#: Forms of rows whose routes are remembered.
_MOST_ROUTES = 256
#: The method of arrays that may lie in a GPU's memory.
_DLPACK = "__dlpack_device__"
#: Rows that have no form beyond the class or dtype by which their routes are found.
_WHOLE = np.ndarray, dict
#: Rows whose form is recognised in less time than they are checked.
_FRAMES = "pandas", "polars", "pyarrow"
#: Forms of a class of rows that are recognised.
_MOST = 8

#: Methods that may have compiled entries.
METHODS = (*OF_SCORES, "predict_raw")


class ForestPredictor(OfEntries):
    """What a fitted ``CompiledForest`` calls; rebuilt after unpickling.

    Several routes lead from rows to an answer; see :meth:`_find_routes`.
    """

    __slots__ = ()

    def answer(self, method: str, X: Any, n_jobs: int | None = None) -> Any:
        """Answer as the model's method does, by the first route that takes the rows."""
        kind = type(X)
        form = method, X.dtype if kind is np.ndarray else kind
        routes = self._routes.get(form) if n_jobs == self.entry_jobs else None
        for route in routes or self._find_routes(form, X, n_jobs):
            if (answer := route(self, method, X, n_jobs)) is not None:
                return answer
        return None

    def _find_routes(
        self, form: tuple[str, Any], X: Any, n_jobs: int | None, at_door: bool = True
    ) -> tuple[Route, ...]:
        (method, kind), source = form, self.source
        if method in self.by_leaves:
            return (ForestPredictor.answer_by_leaves,)
        routes, only = self.door_routes(method, X) if at_door else ([], False)
        if only:
            return tuple(routes)
        first_route = len(routes)
        if isinstance(X, Mapping) and is_mapped(X):
            routes.append(ForestPredictor._by_mappings)
        elif isinstance(X, Sequence):
            routes.append(ForestPredictor._by_sequence)
        if is_device_array(X) or (source.facts.on_device and hasattr(kind, _DLPACK)):
            routes.append(ForestPredictor._by_device)
        self.for_jobs(n_jobs)
        remembered = self._routes
        seeks = method not in self.entries
        if not seeks and self.entries.get(method) is not None:
            routes.append(ForestPredictor._by_entry)
        # whether arrays of this dtype are read by another forest alone
        has_forms = source.facts.has_forms
        first = has_forms and self.of_forms.get(kind, self) not in (self, None)
        if has_forms:
            place = first_route if first else len(routes)
            routes.insert(place, ForestPredictor._by_other_forest)
        by_kernels = ForestPredictor._at_first if seeks else ForestPredictor.by_kernels
        routes.append(by_kernels)
        if at_door and (first or not seeks) and len(remembered) < _MOST_ROUTES:
            remembered[form] = tuple(routes)
        return tuple(routes)

    def _by_device(self, method: str, X: Any, n_jobs: int | None) -> Any:
        if not self.are_on_device(X):
            return None
        raw, of_scores = self.module.run("raw", X), partial(self.of_scores, method)
        answer = on_device().answered(self.module.target, of_scores, raw)
        self.counters.add(counters.KERNEL, len(X))
        return answer

    def answer_by_leaves(
        self, method: str, X: Any, n_jobs: int | None, params: Any = NO_PARAMS
    ) -> Any:
        ours = partial(self._by_leaves, method, n_jobs, params)
        return self.at_door(method, X, ours, params)

    def _by_leaves(
        self, method: str, n_jobs: int | None, params: Mapping[str, Any], X: Any
    ) -> Any:
        read = self.read(X, method)
        if (answer := self.leaf_answers(method, read, n_jobs, params)) is not None:
            self.counters.add(self.route, len(answer))
            return answer
        self.fingerprint.check()
        return self.by_model(method, read.given, params)

    def _by_mappings(self, method: str, X: Any, n_jobs: int | None) -> Any:
        if (mappings := self.mappings) is None:
            return None
        if n_jobs != self.entry_jobs or method not in self.entries:
            self._seek_entry(method, n_jobs)
        entry = self._of_objects.get(method) or self.entries.get(method)
        kernels = partial(self.by_certain_rows, method, n_jobs)
        if (answer := mappings.ask(entry, X, kernels)) is None:
            self.source.origin.refuse_mappings(self.source, mappings, X)
            return self.answer(method, mappings.frame(X), n_jobs)
        return answer

    def _by_sequence(self, method: str, X: Any, n_jobs: int | None) -> Any:
        return self._by_mappings(method, X, n_jobs) if is_mapped(X) else None

    def _by_other_forest(self, method: str, X: Any, n_jobs: int | None) -> Any:
        reader = self.of_form(X)
        return None if reader is None else reader.answer(method, X, n_jobs)

    @at_door
    def predict_log_proba(self, X: Any, n_jobs: int | None = None) -> Any:
        follows = self.source.answers.log_proba
        if follows == "scores" and not is_device_array(X):
            return self.answer("predict_log_proba", X, n_jobs)
        if follows != "probabilities":
            return self.ask("predict_log_proba", X)
        probability = self.answer("predict_proba", X, n_jobs)
        if isinstance(probability, list):
            return [np.log(target) for target in probability]
        return np.log(probability)

    # ------------------------------------------------------------ forms of rows

    def open_door(self) -> None:
        """Compare each form of rows and method with the live model from now on."""
        if not self.incomparable:
            from skforge.prediction.door import Door

            self.door = Door()
            for method, entry in self.entries.items():  # those that fit has compiled
                if entry is None or method == "predict_contribs":  # models have none
                    continue
                if self._direct and not self.arrays_meet(method, entry):
                    self.entries[method] = None

    @property
    def incomparable(self) -> str:
        """Why answers cannot be compared with the model's; "" if they can."""
        if absence := self.source.origin.absence:
            return f"this CompiledForest {absence}"
        reduction = self.module.reduction
        return "" if reduction == "exact" else f"reduction={reduction!r} has other bits"

    def door_routes(self, method: str, X: Any) -> tuple[list[Any], bool]:
        """Return the routes to try first, and whether they leave no row to others."""
        whole = type(X) in _WHOLE
        if self.door is None:
            known = kind_of(X) in _FRAMES or (type(X) is list and not is_mapped(X))
            return [type(self).by_form] if known else [], False
        if whole and self.door.agreed(method, X):
            return [], False
        return [type(self).by_form], whole

    def by_form(self, method: str, X: Any, n_jobs: int | None) -> Any:
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
                if entry is None or read is None or n_jobs != self.entry_jobs:
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
        self, method: str, X: Any, n_jobs: int | None, ask: Callable[..., Any]
    ) -> tuple[KnownForm, Any] | None:
        """Return the form of rows, and the entry's answer; None until one was made."""
        at = self.of_rows(X) if self.source.facts.has_forms else self
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

    def _by_known(self, method: str, n_jobs: int | None, X: Any) -> Any:
        """Answer as later calls of rows of this form do; None: as first ones."""
        known = self._known_form(method, X, n_jobs, lambda entry, rows: entry(rows))
        return None if known is None else known[1]

    def _past_door(self, method: str, n_jobs: int | None, X: Any) -> Any:
        form = method, X.dtype if type(X) is np.ndarray else type(X)
        for route in self._find_routes(form, X, n_jobs, at_door=False):
            if (answer := route(self, method, X, n_jobs)) is not None:
                return answer
        return None


def _same(answer: Any, other: Any) -> bool:
    from skforge.prediction.differences import difference

    alike = getattr(answer, "strides", None) == getattr(other, "strides", None)
    return alike and difference(answer, other) is None
