"""A compiled module behind its source's methods: rows in, the source's answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import on_device
from skforge.engine.arrays import into, is_device_array
from skforge.engine.auto import AutoModule
from skforge.engine.entry.mappings import CompiledDictReader
from skforge.engine.module import CompiledModule
from skforge.exceptions import (
    InvalidInputError,
    SourceNeededError,
    warn,
    with_article,
)
from skforge.forest.forest import Forest
from skforge.frontends.base import last_step
from skforge.frontends.checks import ROUNDS, refuse_arguments
from skforge.outputs.answers import labels_of
from skforge.prediction import blocks, counters
from skforge.prediction.at_door import AtDoor, at_door
from skforge.prediction.engines import SourceEngine
from skforge.prediction.forms_met import Question
from skforge.prediction.of_entries import OfEntries, Route
from skforge.prediction.of_leaves import LeafAnswers
from skforge.prediction.of_rounds import OfRounds
from skforge.prediction.of_rows import OfRows
from skforge.prediction.of_trees import OfTrees
from skforge.runtime.mappings import Mappings, is_mapped
from skforge.sources.base import METHODS as OF_SCORES
from skforge.sources.base import Source, UnsureError
from skforge.sources.find import Fingerprint, FirstMember, source_of
from skforge.sources.plain import ReadArray

#: Forms of rows whose routes are remembered.
_MOST_ROUTES = 256
_NO_PARAMS: Mapping[str, Any] = MappingProxyType({})
#: The method of arrays that may lie in a GPU's memory.
_DLPACK = "__dlpack_device__"

#: Methods that may have compiled entries.
METHODS = (*OF_SCORES, "predict_raw")


class ForestPredictor(OfRows, OfEntries, OfTrees, OfRounds, AtDoor):
    """What a fitted ``CompiledForest`` calls; rebuilt after unpickling.

    Several routes lead from rows to an answer; see :meth:`_find_routes`.
    """

    #: What each call looks at; see ``OfEntries``.
    __slots__ = "_by_members", "source"

    def __init__(
        self,
        module: CompiledModule | AutoModule,
        estimator: Any,
        start: FirstMember = None,
        source: Source | None = None,
    ) -> None:
        super().__init__()
        self.module: Any = module
        self.forest: Forest = module.forest
        self.source: Source = source or source_of(estimator, module.forest, start)
        self.engine = SourceEngine(module, self.source)
        self._by_members = self.source.answers.by_members
        #: Methods that what leaves hold answers, and not raw scores.
        self.by_leaves: tuple[str, ...] = getattr(
            self.source.leaf_source, "by_leaves", ()
        )
        self.fingerprint = Fingerprint(estimator, start)
        #: By form of rows: itself, one with another forest, or None: the source alone.
        self.of_forms: dict[Any, ForestPredictor | None] = {}
        self._dtype = module.forest.input_dtype
        #: Columns of the forest's rows, if they are made of others.
        self._made = self.forest.n_features if self.forest.is_encoded else 0
        #: The labels that ``predict`` returns; None for 0, 1, ...
        self._classes: Any = labels_of(self.forest.answers, estimator)
        #: Returns a method's answer for raw scores.
        self.of_scores = self.source.answers.of_scores(self.forest, estimator)
        #: Rows of X, and drawn ones, on which ``fit`` compared it with the source.
        self.checked = 0, 0
        self.counters = counters.Counters()
        self.door = None
        self.agreed_over = {}
        #: Some of the rows that ``fit`` saw; a saved file is compared on them.
        self.sample: Any = None
        #: Keeps for the next process which entries methods have; of a file's model.
        self.note: Any = None
        #: Whether a user was told already that further keys of mappings are ignored.
        self.ignores = False

    def ask(self, method: str, X: Any, **params: Any) -> Any:
        if method in self.by_leaves:
            return self.answer_by_leaves(method, X, self.entry_jobs, params)
        self.fingerprint.check()
        if params and (same := self.source.same_method(method, params)) is not None:
            return self.answer(same, X, self.entry_jobs)
        if params and (answer := self._rounds_meet(method, X, params)) is not None:
            return answer
        if params and self.forest.source in ("xgboost", "lightgbm"):
            self._refuse_rounds(method, params.keys())
        return self._by_model(method, self.framed(X), params)

    def _rounds_meet(self, method: str, X: Any, params: Mapping[str, Any]) -> Any:
        if self.door is None or self._rounds_asked(params) is None:
            return self._answer_rounds(method, X, params)

        def ours(rows: Any) -> Any:
            answer = self._answer_rounds(method, rows, params)
            if answer is not None:
                return answer
            return self._by_model(method, self.framed(rows), params)

        theirs = partial(self.own, method, params)
        question = Question(self, self.asked_with(method, params), ours, theirs)
        return self.door.answer(question, X)

    def _by_model(self, method: str, X: Any, params: Mapping[str, Any]) -> Any:
        answer = self.source.call(method, X, **params)
        self.counters.add(counters.LIBRARY, counters.rows_of(answer))
        return answer

    def _refuse_rounds(self, method: str, params: Set[str]) -> None:
        """Refuse another library's names of rounds, which LightGBM ignores.

        A Booster that classifies would answer with scores in place of labels.
        """
        model, scores = self.source.model, not self.source.answers.labels
        if model is not None:
            called = getattr(last_step(model), method, None)
            names = params if called is None else ROUNDS & params
            if called is not None and not (scores and self.forest.classifies):
                names = names - signature(called).parameters.keys()
            name = with_article(self.source.class_name)
            refuse_arguments(method, names, f" of {name}")

    def answer(
        self, method: str, X: Any, n_jobs: int | None = None, out: Any = None
    ) -> Any:
        """Answer as the model's method does, by the first route that takes the rows."""
        if out is not None:
            if self.door is not None and self.door.agreed(method, X) is None:
                self.answer(method, self.door.few(X), n_jobs)
            return self.over_rows(self._write, method, X, n_jobs, out)
        kind = type(X)
        form = method, X.dtype if kind is np.ndarray else kind
        routes = self._routes.get(form) if n_jobs == self.entry_jobs else None
        for route in routes or self._find_routes(form, X, n_jobs):
            if (answer := route(self, method, X, n_jobs)) is not None:
                return answer
        return None

    def _write(self, method: str, X: Any, n_jobs: int | None, out: Any) -> Any:
        arrays = isinstance(X, np.ndarray) and isinstance(out, np.ndarray)
        apart = arrays and not np.may_share_memory(X, out)
        answers = self._by_blocks(method, X, n_jobs, out) if apart else None
        whole = answers is None
        return into(out, self.answer(method, X, n_jobs)) if whole else answers

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
        if is_device_array(X) or (source.on_device and hasattr(kind, _DLPACK)):
            routes.append(ForestPredictor._by_device)
        self.for_jobs(n_jobs)
        remembered = self._routes
        seeks = method not in self.entries
        if not seeks and self.entries.get(method) is not None:
            routes.append(ForestPredictor._by_entry)
        # whether arrays of this dtype are read by another forest alone
        first = source.has_forms and self.of_forms.get(kind, self) not in (self, None)
        if source.has_forms:
            place = first_route if first else len(routes)
            routes.insert(place, ForestPredictor._ask_form)
        by_kernels = ForestPredictor._at_first if seeks else ForestPredictor._by_kernels
        routes.append(by_kernels)
        if at_door and (first or not seeks) and len(remembered) < _MOST_ROUTES:
            remembered[form] = tuple(routes)
        return tuple(routes)

    def _by_device(self, method: str, X: Any, n_jobs: int | None) -> Any:
        if not self._on_device(X):
            return None
        raw, of_scores = self.module.run("raw", X), partial(self.of_scores, method)
        answer = on_device().answered(self.module.target, of_scores, raw)
        self.counters.add(counters.KERNEL, len(X))
        return answer

    def _on_device(self, X: Any) -> bool:
        """Tell whether kernels read rows on a GPU; refuse them if the CPU has to."""
        if not is_device_array(X) or self.source.before:  # its steps may take them
            return False
        if not self.source.on_device:
            raise InvalidInputError(
                f"{self.source.class_name} computes its predictions on the CPU; pass "
                "the rows as a NumPy array."
            )
        return True

    def answer_by_leaves(
        self, method: str, X: Any, n_jobs: int | None, params: Any = _NO_PARAMS
    ) -> Any:
        def ours(rows: Any) -> Any:
            return self._by_leaves(method, rows, n_jobs, params)

        if self.door is None:
            return ours(X)
        theirs = partial(self.own, method, params)
        question = Question(self, self.asked_with(method, params), ours, theirs)
        return self.door.answer(question, X)

    def _by_leaves(
        self, method: str, X: Any, n_jobs: int | None, params: Mapping[str, Any]
    ) -> Any:
        read = self.read(X, method)
        if (answer := self.leaf_answers(method, read, n_jobs, params)) is not None:
            self.counters.add(self._route, len(answer))
            return answer
        self.fingerprint.check()
        return self._by_model(method, read.given, params)

    @cached_property
    def leaf_answers(self) -> LeafAnswers:
        return LeafAnswers(self)

    @cached_property
    def _mappings(self) -> Mappings | None:
        """The reader of mappings; None if the model takes them."""
        columns = self.source.columns()
        if columns is None:
            return None
        mappings = Mappings(columns, CompiledDictReader)
        mappings.ignores |= self.ignores
        return mappings

    def _by_mappings(self, method: str, X: Any, n_jobs: int | None) -> Any:
        if (mappings := self._mappings) is None:
            return None
        if n_jobs != self.entry_jobs or method not in self.entries:
            self._seek_entry(method, n_jobs)
        entry = self._of_objects.get(method) or self.entries.get(method)
        kernels = partial(self._by_certain_rows, method, n_jobs)
        if (answer := mappings.ask(entry, X, kernels)) is None:
            source = self.source
            certain = source.stored is not None and not source.twins
            if certain and (why := mappings.refusal(X, source.outside)):
                raise SourceNeededError(why)
            return self.answer(method, mappings.frame(X), n_jobs)
        return answer

    def _by_certain_rows(self, method: str, n_jobs: int | None, rows: Array) -> Any:
        """Answer a batch that the entry declined, unless it declined its values."""
        refused, limit = self.source.declines, self.source.limit
        by_members = self._by_members and method != "predict_raw"
        if not len(rows) or by_members or refused is None:
            return None
        if refused != "nothing" or limit < np.inf:
            nan = refused != "not_finite"
            least, most = (np.fmin, np.fmax) if nan else (np.minimum, np.maximum)
            if not -limit < least.reduce(rows, None) <= most.reduce(rows, None) < limit:
                return None
        return self._scored(method, rows, n_jobs)

    def _by_sequence(self, method: str, X: Any, n_jobs: int | None) -> Any:
        return self._by_mappings(method, X, n_jobs) if is_mapped(X) else None

    def _by_blocks(
        self, method: str, X: Any, n_jobs: int | None, out: Any = None
    ) -> Array | None:
        said = ""

        def answer(rows: Any) -> Any:
            nonlocal said
            read = self.source.read(rows)
            if read is None or not self.source.takes(read[0]):
                return None
            said = read[1]
            raw = self.engine.run("raw", read[0], n_jobs)
            return self.of_scores(method, raw)

        if not blocks.is_large(X, self._made) or len(self.forest.output_sizes) > 1:
            return None
        if self._by_members and method != "predict_raw":  # of all rows
            return None
        answers = blocks.by_blocks(X, answer, out, self._made)
        if answers is not None:
            self.counters.add(self._route, len(X))
            if said:
                warn(said)
        return answers

    def _by_kernels(
        self, method: str, X: Any, n_jobs: int | None, known: ReadArray | None = None
    ) -> Any:
        X = self.source.prepared(X, method)
        if (answer := self._by_blocks(method, X, n_jobs)) is not None:
            return answer
        if known is None and (reader := self.of_rows(X)) is not self:
            return reader._by_kernels(method, X, n_jobs)
        rows = self.rows(X, method, known)
        if rows is None and not self.source.answers.labels:
            return self.of_scores(method, np.asarray(self.ask("predict_raw", X)))
        answer = None if rows is None else self._scored(method, rows, n_jobs)
        return self.ask(method, X) if answer is None else answer

    def _scored(self, method: str, rows: Any, n_jobs: int | None) -> Any:
        raw = self.engine.run("raw", rows, n_jobs)
        try:
            answer = self.of_scores(method, raw)
        except UnsureError:
            return None
        self.counters.add(self._route, len(raw))
        return answer

    @property
    def _route(self) -> int:
        return counters.STEPS if self.source.before else counters.KERNEL

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
