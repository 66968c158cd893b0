"""What kernels answer: numbers in, the source's answers out."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array
from skforge.exceptions import warn
from skforge.prediction import blocks
from skforge.prediction.of_leaves import LeafAnswers
from skforge.prediction.of_rows import OfRows
from skforge.rows.plain import ReadArray
from skforge.sources.base import UnsureError


class OfKernels(OfRows):
    """Answers rows by the engine, or asks the model; a base of ``ForestPredictor``."""

    __slots__ = ()

    @cached_property
    def leaf_answers(self) -> LeafAnswers:
        return LeafAnswers(self)

    def by_kernels(
        self, method: str, X: Any, n_jobs: int | None, known: ReadArray | None = None
    ) -> Any:
        X = self.source.prepared(X, method)
        if (answer := self.by_blocks(method, X, n_jobs)) is not None:
            return answer
        if known is None and (reader := self.of_rows(X)) is not self:
            return reader.by_kernels(method, X, n_jobs)
        if (rows := self.source.taken(known)) is None:
            rows = self.source.rows(X, method)
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
        self.counters.add(self.route, len(raw))
        return answer

    def by_certain_rows(self, method: str, n_jobs: int | None, rows: Array) -> Any:
        """Answer a batch that the entry declined, unless it declined its values."""
        refused, limit = self.source.facts.declines, self.source.facts.limit
        by_members = self.by_members and method != "predict_raw"
        # the source looks at the values itself
        checks = refused is None or bool(self.forest.whole_columns)
        if not len(rows) or by_members:
            return None
        if checks and not self.source.takes_codes(rows):
            return None
        if not checks and (refused != "nothing" or limit < np.inf):
            nan = refused != "not_finite"
            least, most = (np.fmin, np.fmax) if nan else (np.minimum, np.maximum)
            if not -limit < least.reduce(rows, None) <= most.reduce(rows, None) < limit:
                return None
        return self._scored(method, rows, n_jobs)

    def by_blocks(
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
        of_all = self.by_members or self.forest.outputs.graph is not None
        if of_all and method != "predict_raw":  # of all rows
            return None
        answers = blocks.by_blocks(X, answer, out, self._made)
        if answers is not None:
            self.counters.add(self.route, len(X))
            if said:
                warn(said)
        return answers
