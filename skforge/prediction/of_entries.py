"""Compiled entries: they take rows as users pass them, faster than kernels do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.engine.explanations.contributions import ENTRY_ROWS
from skforge.engine.kernels import raw_scores
from skforge.exceptions import InvalidInputError, warn
from skforge.modules.compiled import CompiledModule
from skforge.outputs import steps
from skforge.outputs.answers import output_of
from skforge.prediction import blocks, counters
from skforge.prediction.at_door import AtDoor
from skforge.prediction.kernel_checks import drawn_rows
from skforge.prediction.of_rows import Entry
from skforge.rows.hashed_rows import objects_of
from skforge.runtime import object_cache
from skforge.runtime.entries import as_method, retire
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.log import INFO, log
from skforge.sources.base import UnsureError

#: Rows on which an entry must match the ordinary path, one by one and as a batch.
CHECKED_ROWS = 24

#: Reentrant, because a predictor may be freed while its thread holds it.
_METHODS_CHANGE = RLock()


class OfEntries(AtDoor):
    """Answers by compiled entries; a base of ``ForestPredictor``."""

    __slots__ = ()

    def __del__(self) -> None:
        if _METHODS_CHANGE is not None:  # None at interpreter shutdown
            self.retire()

    def retire(self) -> None:
        """Make bound methods that users kept look up their object's method again."""
        with _METHODS_CHANGE:
            self._retired = True
            for entry in self._methods:
                retire(entry)

    def meets(self) -> None:
        """Find methods anew, as rows of a form have met the model."""
        if self._of_objects:  # whose entries wait for it
            self.offered.clear()

    def method(self, owner: Any, function: Any) -> Any:
        name = function.__name__
        if name == "predict_log_proba" or (self.by_members and name != "predict_raw"):
            return function  # Python makes the answers
        entry = self._of_objects.get(name)
        if entry is not None and not self.takes_objects(name):
            entry = None  # they meet the model first
        if self.source.facts.direct and not self.source.warning:
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
            if (answer := self._by_objects(objects, given, n_jobs)) is not None:
                return answer
        if (answer := self._by_hashes(method, X, n_jobs)) is not None:
            return answer
        read = None if blocks.is_large(X, self._made) else self.source.read(X)
        if read is None:
            return None
        if (answer := entry(read[0])) is None:
            return self.by_kernels(method, X, n_jobs, read)
        if read[1]:
            warn(read[1])
        return answer

    def _by_objects(self, entry: Entry, X: Any, n_jobs: int | None) -> Any:
        """Answer by an entry of objects, which takes rows that fit L2 when made."""
        if type(X) is not np.ndarray or X.ndim != 2:
            return entry(X)
        return self._in_blocks(entry, X, n_jobs)

    def _in_blocks(
        self, entry: Entry, X: Any, n_jobs: int | None, least: int = 0
    ) -> Any:
        """Answer by an entry that declines batches of more rows, and of fewer."""
        own: Any = getattr(entry, "args", (entry,))[0]  # of log_proba, that of scores
        n, most = len(X), own.__self__.sizes.most_rows
        if least and n > most:
            steps = range(most // 64 * 64, least, -64)
            most = next((m for m in steps if not 0 < n % m < least), most)
        if isinstance(self.module, CompiledModule):
            self.module.seek_hash_kernel(min(n, most), n_jobs)
            if least and n > most:
                self.module.seek_hash_kernel(n % most, n_jobs)
        if n <= most:
            return entry(X)
        sizes: list[int] = []  # of blocks, which the entry counts as calls

        def answer(rows: Any) -> Any:
            if (answered := entry(rows)) is not None:
                sizes.append(len(rows))
            return answered

        answers = blocks.by_blocks(X, answer, most=most)
        whole = answers is not None
        self.counters.take_back(len(sizes) - whole, 0 if whole else sum(sizes))
        return answers

    def _by_hashes(self, method: str, X: Any, n_jobs: int | None) -> Any:
        """Answer frames and tables by the entry of rows with hashes of categories."""
        entry: Any = self._of_hashes.get(method)
        if entry is None or type(X) is np.ndarray or not hasattr(X, "columns"):
            return None
        least = self.module.hash_kernels.least_rows
        if len(X) < least or blocks.is_large(X):
            return None
        if (rows := self.source.read_hashes(X)) is None:
            return None
        return self._in_blocks(entry, rows, n_jobs, least)

    def _at_first(self, method: str, X: Any, n_jobs: int | None) -> Any:
        answer = self.by_kernels(method, X, n_jobs)
        self._seek_entry(method, n_jobs)
        return answer

    def for_jobs(self, n_jobs: int | None) -> None:
        """Forget the entries of other numbers of threads: each is compiled again."""
        if n_jobs != self.entry_jobs:
            self._forget_entries()
            self.entry_jobs = n_jobs

    @own_arithmetic
    def _seek_entry(self, method: str, n_jobs: int | None) -> None:
        """Compile a method's entry; a method without one keeps the ordinary path."""
        self.for_jobs(n_jobs)
        if method in self.entries:
            return
        self.entries[method] = None  # for other threads in the meantime
        if method == "predict_log_proba":
            self._seek_entry("predict_raw", n_jobs)
            of_scores = partial(self.of_scores, method)
            for known in (self.entries, self._of_objects, self._of_hashes):
                if (scores := known.get("predict_raw")) is not None:
                    known[method] = partial(_answer_of, scores, of_scores)
            return
        self._warning = self.source.warning
        by_members = self.by_members and method != "predict_raw"
        entry = (self._answering if by_members else self._checked_entry)(method)
        if entry is not None and self._direct and not self.arrays_meet(method, entry):
            entry = None
        self.entries[method] = entry
        if entry is not None and self.forest.hashed is not None:
            self._seek_entry_of_objects(method, entry)
        log(INFO, "%s has %s compiled entry", method, "no" if entry is None else "a")
        self.offered.clear()  # the methods found so far lack the entry
        self._routes, self.known_forms = {}, {}
        if entry is not None and self.note is not None:
            self.note(self, method)

    def _checked_entry(self, method: str) -> Entry | None:
        """Return an entry that agreed with the method on drawn rows, or None."""
        module, forest, source = self.module, self.forest, self.source
        refused, output = source.facts.declines, output_of(forest.answers, method)
        several = source.answers.by_members and source.answers.more
        targets = output == "probabilities" and len(forest.output_sizes) > 1
        if refused is None or several or targets or method in self.by_leaves:
            return None
        how = self._how(method)
        entry: Entry | None = module.entry(output, refused, **how)
        # Batches that go to a GPU do not use the entry.
        most = min(CHECKED_ROWS, getattr(module, "gpu_min_rows", CHECKED_ROWS + 1) - 1)
        if entry is None or most < 1:
            return None
        rows = drawn_rows(module)[:most]
        if refused != "nothing":
            half = source.facts.limit / 2
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

    def _how(self, method: str) -> dict[str, Any]:
        """Return the arguments of a method's entry."""
        forest, source = self.forest, self.source
        output = output_of(forest.answers, method)
        labels = self.classes if isinstance(self.classes, np.ndarray) else None
        by_column = steps.by_column(forest.answers, output)
        by_column |= source.answers.are_by_column(method)
        how = {"n_jobs": self.entry_jobs, "classes": labels}
        return {**how, "limit": source.facts.limit, "by_column": by_column}

    def _seek_entry_of_objects(self, method: str, entry: Entry) -> None:
        """Compile the entry of objects of a model with categories, if it has one."""
        module, of_hashes, least = self.module, None, sys.maxsize
        known = module.hash_kernels if isinstance(module, CompiledModule) else None
        if self.source.facts.declines == "nothing" and known is not None:
            output, how = output_of(self.forest.answers, method), self._how(method)
            of_hashes = module.entry(output, "nothing", hashes=True, **how)
            self.counters.watch(of_hashes)
            self._of_hashes[method] = of_hashes
            least = known.least_rows
        if made := self.source.entry_of_objects(entry, of_hashes, least):
            self._of_objects[method] = made

    def _answering(self, method: str) -> Entry | None:
        facts, of_scores = self.source.facts, self.of_scores
        if facts.declines is None:
            return None
        how = {"n_jobs": self.entry_jobs, "limit": facts.limit}
        entries = [
            module.entry("raw", facts.declines, **how) for module in self.engine.modules
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
        self.entries, self._of_objects, self._of_hashes = {}, {}, {}
        self._routes, self.known_forms = {}, {}
        self.offered.clear()

    def threads_change(self) -> None:
        """Drop the entries: the rows they accept depend on the number of threads."""
        with _METHODS_CHANGE:
            for entry in self._methods:
                retire(entry)
            self._methods = {}
            self._forget_entries()
            self.timed = None

    @own_arithmetic
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
        self.engine.warm_up(batch_sizes, n_jobs)
        if isinstance(self.module, CompiledModule):
            self.module.warm_up_hashes(batch_sizes)
        for method in methods:
            self._seek_entry(method, n_jobs)
        if contribs and self.forest.n_predicates:
            least = 1 if batch_sizes is None else int(np.min(batch_sizes))
            rows = np.repeat(drawn_rows(self.module)[:1], min(least, ENTRY_ROWS + 1), 0)
            self.seek_explaining_entry(rows, self.engine.run("contribs", rows, None))
        with suppress(InvalidInputError):  # the model knows no names
            if self.mappings is not None:
                self.mappings.load()

    def explained_by_entry(self, X: Any, n_jobs: int | None) -> Any:
        jobs = self.module.n_jobs if n_jobs is None else n_jobs
        entry = self.entries.get("predict_contribs")
        if entry is None or not self._direct or jobs not in (None, 1):
            return None
        answer = entry(X)
        if answer is not None and self._warning:
            warn(self._warning)
        return answer

    def seek_explaining_entry(self, rows: Any, values: Array) -> None:
        """Compile the entry of contributions, which has to find these of the rows."""
        source, few = self.source, 0 < len(values) <= ENTRY_ROWS
        fits = isinstance(rows, np.ndarray) and isinstance(self.module, CompiledModule)
        if "predict_contribs" in self.entries or not few or not fits:
            return
        if source.facts.declines is None:
            return
        entry = self.module.contribs_entry(source.facts.declines, source.facts.limit)
        if entry is None or not _equal_arrays(values, entry(rows)):
            entry = None
        else:
            self.counters.watch(entry)
        self._warning = source.warning
        self.entries["predict_contribs"] = entry


def _answer_of(entry: Entry, of_scores: Callable[[Any], Any], X: Any) -> Any:
    raw = entry(X)
    return None if raw is None else of_scores(raw)


def _equal_arrays(wanted: Any, answer: Any) -> bool:
    arrays = isinstance(wanted, np.ndarray) and isinstance(answer, np.ndarray)
    if not arrays or wanted.dtype != answer.dtype:
        return False
    orders = [(x.flags.c_contiguous, x.flags.f_contiguous) for x in (wanted, answer)]
    return orders[0] == orders[1] and np.array_equal(wanted, answer)
