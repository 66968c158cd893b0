"""A compiled module behind its source's methods: rows in, the source's answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from inspect import signature
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.compiler.backend import on_device
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.rounds import ends_in_bias
from skforge.compiler.forest.sparse_rows import dense_blocks
from skforge.compiler.frontends.base import last_step
from skforge.compiler.frontends.checks import ROUNDS, refuse_arguments
from skforge.compiler.outputs import steps
from skforge.compiler.outputs.answers import labels_of, of_scores, output_of
from skforge.compiler.runtime.arrays import into, is_device_array
from skforge.compiler.runtime.auto import AutoModule
from skforge.compiler.runtime.entry.mappings import CompiledDictReader
from skforge.compiler.runtime.explanations.contributions import ENTRY_ROWS
from skforge.compiler.runtime.hashed_rows import objects_of
from skforge.compiler.runtime.kernels import raw_scores
from skforge.compiler.runtime.module import CompiledModule, compile_forest
from skforge.exceptions import (
    InvalidInputError,
    SourceNeededError,
    UnsupportedModelError,
    warn,
    with_article,
)
from skforge.prediction import blocks, counters
from skforge.prediction.at_door import AtDoor, at_door
from skforge.prediction.kernel_checks import by_reference, drawn_rows
from skforge.prediction.of_leaves import LeafAnswers
from skforge.prediction.of_rounds import OfRounds
from skforge.runtime import object_cache
from skforge.runtime.entries import as_method, retire
from skforge.runtime.log import INFO, log
from skforge.runtime.mappings import Mappings, is_mapped
from skforge.sources.base import METHODS as OF_SCORES
from skforge.sources.base import Source, UnsureError
from skforge.sources.find import Fingerprint, FirstMember, source_of
from skforge.sources.fitted import returns_frames
from skforge.sources.plain import ReadArray

if TYPE_CHECKING:
    from skforge.compiler.runtime.sparse import SparseWalk

#: Forms of rows that are looked into, and those whose routes are remembered.
_MOST_FORMS, _MOST_ROUTES = 32, 256
_NO_PARAMS: Mapping[str, Any] = MappingProxyType({})
#: The method of arrays that may lie in a GPU's memory.
_DLPACK = "__dlpack_device__"

#: Methods that may have compiled entries.
METHODS = (*OF_SCORES, "predict_raw")

#: Reentrant, because a predictor may be freed while its thread holds it.
_METHODS_CHANGE = RLock()


#: Answers rows, or declines them with None: of a method, rows and a number of threads.
Route: TypeAlias = Callable[["ForestPredictor", str, Any, "int | None"], Any]


class ForestPredictor(OfRounds, AtDoor):
    """What a fitted ``CompiledForest`` calls; rebuilt after unpickling.

    Several routes lead from rows to an answer; see :meth:`_find_routes`.
    """

    #: What each call looks at, faster than in the dictionary of all others.
    __slots__ = (
        *("_by_members", "_direct", "_routes", "_warning", "entries", "entry_jobs"),
        *("source", "__dict__", "__weakref__"),
    )

    def __init__(
        self,
        module: CompiledModule | AutoModule,
        estimator: Any,
        start: FirstMember = None,
        source: Source | None = None,
    ) -> None:
        self._retired = False
        self._methods: dict[Entry, tuple[Any, Any]] = {}
        self.module: Any = module
        for part in module.parts:  # rows come from the source
            part.takes_made = True
        self.forest: Forest = module.forest
        self.source: Source = source or source_of(estimator, module.forest, start)
        self._by_members = self.source.answers.by_members
        #: Methods that what leaves hold answers, and not raw scores.
        self.by_leaves: tuple[str, ...] = getattr(
            self.source.leaf_source, "by_leaves", ()
        )
        self.fingerprint = Fingerprint(estimator, start)
        #: By form of rows: itself, one with another forest, or None: the source alone.
        self.variants: dict[Any, ForestPredictor | None] = {}
        self._dtype = module.forest.input_dtype
        #: Columns of the forest's rows, if they are made of others.
        self._made = 0 if self.forest.hashed is None else self.forest.n_features
        #: The labels that ``predict`` returns; None for 0, 1, ...
        self._classes: Any = labels_of(self.forest.answers, estimator)
        #: Returns a method's answer for raw scores.
        self.of_scores = self.source.answers.of_scores(self.forest, estimator)
        #: Methods known to be offered; see ``fitted.offered``.
        self.offered: dict[Any, Any] = {}
        #: Compiled entries by method. An entry takes rows and returns None for rows
        #: that it declines. None: the method has no entry. Absent: not called yet.
        self.entries: dict[str, Entry | None] = {}
        self.entry_jobs: int | None = None
        #: Those that take arrays of objects, of a model with hashed categories.
        self._of_objects: dict[str, Entry] = {}
        #: Whether entries take arrays as users pass them, and what is then warned of.
        self._direct, self._warning = False, ""
        #: By method, and class of rows or dtype of arrays. They hold no reference to
        #: the predictor, so that it is freed, and its methods retire, with the last
        #: one of a user.
        self._routes: dict[tuple[str, Any], tuple[Route, ...]] = {}
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
        #: What ``CompiledForest.summary(X)`` measured last: the method, the times by
        #: batch size and the source's name.
        self.timed: tuple[str, tuple[Any, ...], str] | None = None

    def __del__(self) -> None:
        if _METHODS_CHANGE is not None:  # None at interpreter shutdown
            self.retire()

    def retire(self) -> None:
        """Make bound methods that users kept look up their object's method again."""
        with _METHODS_CHANGE:
            self._retired = True
            for entry in self._methods:
                retire(entry)

    def threads_change(self) -> None:
        """Drop the entries: the rows they accept depend on the number of threads."""
        with _METHODS_CHANGE:
            for entry in self._methods:
                retire(entry)
            self._methods = {}
            self._forget_entries()
            self.timed = None

    def method(self, owner: Any, function: Any) -> Any:
        name = function.__name__
        if name == "predict_log_proba" or (self._by_members and name != "predict_raw"):
            return function  # Python makes the answers
        entry = self._of_objects.get(name)
        if entry is not None and not self.takes_objects(name):
            entry = None  # they meet the model first
        if self.source.direct and not self.source.warning:
            entry = self.entries.get(name)
        if entry is None:
            return function
        with _METHODS_CHANGE:
            if self._retired:
                return function
            if entry not in self._methods:
                self._methods[entry] = function, as_method(entry, owner, function)
            behind, bound = self._methods[entry]
        return bound if behind is function else function

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
        return self.door.answer(self, self.asked_with(method, params), X, ours, theirs)

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
        (method, kind), source, remembered = form, self.source, self._routes
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
        seeks = method not in self.entries or n_jobs != self.entry_jobs
        if not seeks and self.entries.get(method) is not None:
            routes.append(ForestPredictor._by_entry)
        if source.has_forms:
            # arrays of this dtype are read by another forest alone
            first = self.variants.get(kind, self) not in (self, None)
            place = first_route if first else len(routes)
            routes.insert(place, ForestPredictor._by_form)
        if seeks:
            return (*routes, ForestPredictor._at_first)
        routes.append(ForestPredictor._by_kernels)
        if at_door and len(remembered) < _MOST_ROUTES:
            remembered[form] = tuple(routes)
        return tuple(routes)

    def _by_device(self, method: str, X: Any, n_jobs: int | None) -> Any:
        if not self._on_device(X):
            return None
        raw, of_scores = self.module.predict_raw(X), partial(self.of_scores, method)
        answer = on_device().answered_on_device(self.module.target, of_scores, raw)
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

    def _by_entry(self, method: str, X: Any, n_jobs: int | None) -> Any:
        """Answer with the compiled entry, or with kernels for rows that it declines."""
        if (entry := self.entries.get(method)) is None:
            return None
        if self._direct and (answer := entry(X)) is not None:
            if self._warning:
                warn(self._warning)
            return answer
        if (objects := self._of_objects.get(method)) is not None:
            given = objects_of(X) if type(X) is list else X
            if (answer := objects(given)) is not None:
                return answer
        read = None if blocks.is_large(X, self._made) else self.source.read(X)
        if read is None:
            return None
        if (answer := entry(read[0])) is None:
            return self._by_kernels(method, X, n_jobs, read)
        if read[1]:
            warn(read[1])
        return answer

    def answer_by_leaves(
        self, method: str, X: Any, n_jobs: int | None, params: Any = _NO_PARAMS
    ) -> Any:
        def ours(rows: Any) -> Any:
            return self._by_leaves(method, rows, n_jobs, params)

        if self.door is None:
            return ours(X)
        theirs = partial(self.own, method, params)
        return self.door.answer(self, self.asked_with(method, params), X, ours, theirs)

    def _by_leaves(
        self, method: str, X: Any, n_jobs: int | None, params: Mapping[str, Any]
    ) -> Any:
        X = self.source.prepared(self.framed(X), method)
        if (answer := self.leaf_answers(method, X, n_jobs, params)) is not None:
            self.counters.add(self._route, len(answer))
            return answer
        self.fingerprint.check()
        return self._by_model(method, X, params)

    @cached_property
    def leaf_answers(self) -> LeafAnswers:
        return LeafAnswers(self)

    def of_rows(self, X: Any) -> ForestPredictor:
        """Return the predictor whose forest reads rows: itself, or their form's."""
        return self._variant(X) or self

    def _by_form(self, method: str, X: Any, n_jobs: int | None) -> Any:
        variant = self._variant(X)
        return None if variant is None else variant.answer(method, X, n_jobs)

    def _at_first(self, method: str, X: Any, n_jobs: int | None) -> Any:
        answer = self._by_kernels(method, X, n_jobs)
        self._seek_entry(method, n_jobs)
        return answer

    def _variant(self, X: Any) -> ForestPredictor | None:
        """Return the predictor for rows of another form, made for the first of them."""
        form = self.source.form(X)
        if form is None:
            return None
        if form not in self.variants:
            if len(self.variants) >= _MOST_FORMS:
                return None
            self.fingerprint.check()
            self.variants[form] = None  # for other threads in the meantime
            source, who = self.source.of_form(form), "the model itself"
            if source is self.source:
                self.variants[form], who = self, "the kernels of float64 rows"
            elif source is not None and isinstance(self.module, CompiledModule):
                module = self._module_of(source.forest)
                model = source.model if source.stored is None else source.stored
                variant = ForestPredictor(module, model, source=source)
                variant.counters, who = self.counters, "kernels of their own"
                self.variants[form] = variant
            self._routes = {}
            from skforge.sources.forms import form_text

            log(INFO, "rows of the form %s are answered by %s", form_text(form), who)
        return self.variants[form]

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

    def framed(self, X: Any) -> Any:
        if is_mapped(X) and self._mappings is not None:
            return self._mappings.frame(X)
        return X

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
            return self.of_scores(method, self.scores(read[0], n_jobs))

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
        self, method: str, X: Any, n_jobs: int | None, read: ReadArray | None = None
    ) -> Any:
        X = self.source.prepared(X, method)
        if (answer := self._by_blocks(method, X, n_jobs)) is not None:
            return answer
        rows = self.rows(X, method, read)
        if rows is None and self.source.before:  # the rest may read another form
            if (variant := self._variant(X)) not in (None, self):
                return variant._by_kernels(method, X, n_jobs)
            rows = None if variant is None else self.rows(X, method)
        if rows is None and not self.source.answers.labels:
            return self.of_scores(method, np.asarray(self.ask("predict_raw", X)))
        if rows is None:
            return self.ask(method, X)
        answer = self._scored(method, rows, n_jobs)
        return self.ask(method, X) if answer is None else answer

    def _scored(self, method: str, rows: Any, n_jobs: int | None) -> Any:
        raw = self._run("predict_raw", rows, n_jobs)
        try:
            answer = self.of_scores(method, raw)
        except UnsureError:
            return None
        self.counters.add(self._route, len(raw))
        return answer

    @property
    def _route(self) -> int:
        return counters.STEPS if self.source.before else counters.KERNEL

    def _module_of(self, forest: Forest) -> CompiledModule:
        like = self.module
        module = compile_forest(forest, None, like.target, like.reduction)
        by_reference(module)
        return module

    @cached_property
    def modules(self) -> list[CompiledModule]:
        return [self.module, *map(self._module_of, self.source.answers.more)]

    def scores(self, rows: Array, n_jobs: int | None) -> Array:
        if not self.source.answers.more:
            return self.module.predict_raw(rows, n_jobs=n_jobs)
        parts = [module.predict_raw(rows, n_jobs=n_jobs) for module in self.modules]
        return np.column_stack(parts)

    def _seek_entry(self, method: str, n_jobs: int | None) -> None:
        """Compile a method's entry; a method without one keeps the ordinary path.

        Entries depend on the number of threads of other calls: if it changes, each
        entry is compiled again when its method is next called.
        """
        if n_jobs != self.entry_jobs:
            self._forget_entries()
            self.entry_jobs = n_jobs
        if method in self.entries:
            return
        self.entries[method] = None  # for other threads in the meantime
        if method == "predict_log_proba":
            self._seek_entry("predict_raw", n_jobs)
            of_scores = partial(self.of_scores, method)
            for known in (self.entries, self._of_objects):
                if (scores := known.get("predict_raw")) is not None:
                    known[method] = partial(_answer_of, scores, of_scores)
            return
        self._direct, self._warning = self.source.direct, self.source.warning
        by_members = self._by_members and method != "predict_raw"
        entry = (self._answering if by_members else self._checked_entry)(method, n_jobs)
        if entry is not None and self._direct and not self.arrays_meet(method, entry):
            entry = None
        self.entries[method] = entry
        if entry is not None and (objects := self.source.entry_of_objects(entry)):
            self._of_objects[method] = objects
        log(INFO, "%s has %s compiled entry", method, "no" if entry is None else "a")
        self.offered.clear()  # the methods found so far lack the entry
        self._routes = {}
        if entry is not None and self.note is not None:
            self.note(self, method)

    def _checked_entry(self, method: str, n_jobs: int | None) -> Entry | None:
        """Return an entry that agreed with the method on drawn rows, or None."""
        module, forest, source = self.module, self.forest, self.source
        refused, output = source.declines, output_of(forest.answers, method)
        several = source.answers.by_members and source.answers.more
        targets = output == "probabilities" and len(forest.output_sizes) > 1
        if refused is None or several or targets or method in self.by_leaves:
            return None
        labels = self._classes if isinstance(self._classes, np.ndarray) else None
        by_column = steps.by_column(forest.answers, output) or source.answers.by_column
        how = {"n_jobs": n_jobs, "classes": labels, "limit": source.limit}
        how["by_column"] = by_column
        entry: Entry | None = module.entry(output, refused, **how)
        # Batches that go to a GPU do not use the entry.
        most = min(CHECKED_ROWS, getattr(module, "gpu_min_rows", CHECKED_ROWS + 1) - 1)
        if entry is None or most < 1:
            return None
        rows = drawn_rows(module)[:most]
        if refused != "nothing":
            half = source.limit / 2
            rows = np.clip(np.nan_to_num(rows), -half, half)
        with module.kernels.one():
            parts = [rows[:1], rows]
            if entry(rows) is None:  # until threads are planned, if they may share rows
                parts = [rows[i : i + 1] for i in range(len(rows))]
            for part in parts:
                kernel = module.kernels.scores(len(part))
                wanted = self.of_scores(method, raw_scores(forest, kernel, part))
                if not _equal_arrays(wanted, entry(part)):
                    return None
        self.counters.watch(entry)
        return entry

    def _answering(self, method: str, n_jobs: int | None) -> Entry | None:
        source, refused, of_scores = self.source, self.source.declines, self.of_scores
        if refused is None:
            return None
        entries = [
            module.entry("raw", refused, n_jobs=n_jobs, limit=source.limit)
            for module in self.modules
        ]
        if None in entries:
            return None

        def answered(X: Any) -> Any:
            parts = [entry(X) for entry in entries]
            if any(scores is None for scores in parts):
                return None
            raw = parts[0] if len(parts) == 1 else np.column_stack(parts)
            try:
                answer = of_scores(method, raw)
            except UnsureError:
                return None
            self.counters.add(counters.ENTRY, len(raw))
            return answer

        return answered

    def _forget_entries(self) -> None:
        self.entries, self._of_objects, self._routes = {}, {}, {}
        self.offered.clear()

    def warm_up(
        self,
        methods: Iterable[str],
        batch_sizes: Any,
        n_jobs: int | None,
        contribs: bool = False,
    ) -> None:
        for member in self.source.members:
            member.warm_up(batch_sizes)
        if self.source.members:
            return
        with object_cache.watched() as used:
            self._warm_up(methods, batch_sizes, n_jobs, contribs)
        if self.note is not None:
            self.note.warmed(self, methods, batch_sizes, used)

    def _warm_up(
        self,
        methods: Iterable[str],
        batch_sizes: Any,
        n_jobs: int | None,
        contribs: bool,
    ) -> None:
        if contribs:
            self.module.warm_up(batch_sizes, contribs=True)
        if self.by_leaves:
            self.leaf_answers.warm_up(batch_sizes)
        for module in self.modules:
            module.warm_up(batch_sizes)
            module.plan_threads(n_jobs)
        _ = self._walk
        if self._narrow is not None:
            self._narrow.module.warm_up()  # sparse rows use it in blocks
        for method in methods:
            self._seek_entry(method, n_jobs)
        if contribs and self.forest.n_predicates:
            least = 1 if batch_sizes is None else int(np.min(batch_sizes))
            rows = np.repeat(drawn_rows(self.module)[:1], min(least, ENTRY_ROWS + 1), 0)
            self._explain_by_entry(rows, self.module.predict_contribs(rows))
        with suppress(InvalidInputError):  # the model knows no names
            if self._mappings is not None:
                self._mappings.load()

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

    def transformed(self, X: Any) -> Any:
        raw = self._by_kernels("predict_raw", X, None)
        return of_scores(self.forest.answers, "transformed", np.asarray(raw))

    @at_door
    def apply(self, X: Any, n_jobs: int | None = None) -> Any:
        far = self._on_device(X)
        X = self.source.prepared(self.framed(X))
        if far or is_device_array(X):  # the pipeline's own steps may return such
            leaves = self.module.apply(X)
        else:
            rows = self.source.rows(X, "apply")
            if rows is None:
                return self.ask("apply", X)
            leaves = self._run("apply", rows, n_jobs)
        self.counters.add(self._route, len(leaves))
        return self.source.answers.leaves(leaves)

    @at_door
    def transform(self, X: Any, n_jobs: int | None = None) -> Any:
        """Return a matrix, or votes; who is to return frames does so itself."""
        stored, answers = self.source.stored is not None, self.source.answers
        known = answers.transforms if stored else answers.matrix
        if not known or returns_frames(self.source.model):
            return self.ask("transform", X)
        if not answers.matrix:
            return self.answer("transform", X, n_jobs)
        columns = self.answer("predict_raw", X, n_jobs)
        return answers.one_hot(columns, self.forest.n_leaves)

    def per_tree(self, X: Any, n_jobs: int | None = None) -> Array:
        self._refuse_members("the values of single trees")
        self.numbers_meet(X)
        if (reader := self.of_rows(X)) is not self:
            return reader.per_tree(X, n_jobs)
        rows = self._numbers(X, "values of single trees")
        values = self._run("predict_per_tree", rows, n_jobs)
        self.counters.add(self._route, len(values))
        return values

    def _refuse_members(self, what: str) -> None:
        name, none = self.source.class_name, f"for which {what} are not defined"
        if not self.source.explains:
            raise UnsupportedModelError(
                f"{name} answers with something else than sums of its trees, {none}."
            )
        if self._by_members:
            raise UnsupportedModelError(
                f"{name} computes its predictions from the raw scores of several "
                f"forests, {none}; compile one of its estimators."
            )

    def contribs(
        self, X: Any, n_jobs: int | None = None, background: Any = None, **options: bool
    ) -> Array:
        self._refuse_members("contributions")
        self.numbers_meet(X)
        if (reader := self.of_rows(X)) is not self:
            return reader.contribs(X, n_jobs, background, **options)
        if background is not None:
            rows = self._numbers(background)
            if hasattr(rows, "tocsr"):
                dense = dense_blocks(rows, self.source.fill, self._dtype)
                rows = np.concatenate([*dense])
            options["background"] = rows
        plain = background is None and not any(options.values())
        jobs = self.module.n_jobs if n_jobs is None else n_jobs
        if plain and self._direct and jobs in (None, 1):
            entry = self.entries.get("predict_contribs")
            if entry is not None and (answer := entry(X)) is not None:
                if self._warning:
                    warn(self._warning)
                return answer
        rows = self._numbers(X)
        values = self._run("predict_contribs", rows, n_jobs, **options)
        if plain and "predict_contribs" not in self.entries:
            self._explain_by_entry(rows, values)
        self.counters.add(self._route, len(values))
        if (hashed := self.forest.hashed) is None:
            return values
        return hashed.shared(values, options.get("interactions", False))

    def _explain_by_entry(self, rows: Any, values: Array) -> None:
        source, few = self.source, 0 < len(values) <= ENTRY_ROWS
        fits = isinstance(rows, np.ndarray) and isinstance(self.module, CompiledModule)
        if not few or not fits or self._made or source.declines is None:
            return
        entry = self.module.contribs_entry(source.declines, source.limit)
        if entry is None or not _equal_arrays(values, entry(rows)):
            entry = None
        else:
            self.counters.watch(entry)
        self._direct, self._warning = source.direct, source.warning
        self.entries["predict_contribs"] = entry

    def _numbers(self, X: Any, what: str = "contributions") -> Any:
        if getattr(X, "shape", None) == (0, self.forest.n_columns):
            return np.empty((0, self.forest.n_features), self._dtype)  # not all take it
        if self._on_device(X):
            raise InvalidInputError(
                f"{what} need rows in host memory, but these are on a GPU; pass a "
                "NumPy array."
            )
        X = self.source.prepared(self.framed(X))
        rows = self.rows(X, "predict_raw")
        if rows is None:
            self.ask("predict", X)  # rows that the model refuses have its own error
            raise InvalidInputError(
                f"{what} need rows that kernels read, but {self.source.class_name} "
                f"answers these ({type(X).__name__}) itself; pass a float64 array or "
                "DataFrame of its features, with numbers that float32 holds."
            )
        return rows

    def rows(self, X: Any, method: str, read: ReadArray | None = None) -> Any:
        rows = self.source.taken(read or self.source.read(X))
        return self.source.rows(X, method) if rows is None else rows

    def _run(self, method: str, rows: Any, n_jobs: int | None, **options: Any) -> Array:
        if method == "predict_raw" and self.source.answers.more:  # never sparse
            return self.scores(rows, n_jobs)
        call, place = getattr(self.module, method), None
        if isinstance(rows, np.ndarray) or not hasattr(rows, "tocsr"):
            return np.asarray(call(rows, n_jobs=n_jobs, **options))
        # contributions have a column for each feature, those not read included, and
        # walks of sparse rows add leaves up
        if method in ("predict_raw", "apply"):
            if (answer := self._walked(method, rows.tocsr(), n_jobs)) is not None:
                return answer
            if self._narrow is not None:
                narrow, place = self._narrow.module, self._narrow.columns
                call = getattr(narrow, method)
        dense = dense_blocks(rows, self.source.fill, self._dtype, place)
        parts = [call(block, n_jobs=n_jobs, **options) for block in dense]
        return np.concatenate(parts)

    def _walked(self, method: str, rows: Any, n_jobs: int | None) -> Array | None:
        narrow, walk = self._narrow, self._walk if rows.shape[0] else None
        width = self.forest.n_features if narrow is None else narrow.n_columns
        if walk is None or not walk.pays(rows, width):
            return None
        how = self.module.parts[0]._jobs(n_jobs), method == "apply"
        answer = walk(rows, *how)
        answer = walk(rows.sorted_indices(), *how) if answer is None else answer
        bias = method == "apply" and ends_in_bias(self.forest)
        return answer[:, :-1] if bias and answer is not None else answer

    @cached_property
    def _walk(self) -> SparseWalk | None:
        return blocks.walk_of(self.module, self.source.fill)

    @cached_property
    def _narrow(self) -> blocks.Narrow | None:
        return blocks.narrowed(self.module)


Entry = Callable[[Any], Any]

#: Rows on which an entry must match the ordinary path, one by one and as a batch.
CHECKED_ROWS = 24


def _answer_of(entry: Entry, of_scores: Callable[[Any], Any], X: Any) -> Any:
    raw = entry(X)
    return None if raw is None else of_scores(raw)


def _equal_arrays(wanted: Any, answer: Any) -> bool:
    arrays = isinstance(wanted, np.ndarray) and isinstance(answer, np.ndarray)
    if not arrays or wanted.dtype != answer.dtype:
        return False
    orders = [(x.flags.c_contiguous, x.flags.f_contiguous) for x in (wanted, answer)]
    return orders[0] == orders[1] and np.array_equal(wanted, answer)
