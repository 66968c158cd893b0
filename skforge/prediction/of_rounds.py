"""Answers with arguments: for some boosting rounds, and those after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from skforge.engine.by_round import ARGUMENTS, asked
from skforge.exceptions import InvalidInputError
from skforge.forest.forest import Forest
from skforge.frontends.checks import refuse_arguments
from skforge.outputs.answers import answer
from skforge.prediction import counters
from skforge.sources.base import METHODS as OF_SCORES
from skforge.sources.base import Source

#: Methods that kernels answer for some rounds.
METHODS = (*OF_SCORES, "predict_raw")


class OfRounds:
    """A base of ``ForestPredictor``."""

    __slots__ = ()

    module: Any
    forest: Forest
    source: Source
    counters: counters.Counters
    _classes: Any
    _dtype: np.dtype[Any]

    def asked(
        self: Any, method: str, X: Any, args: tuple[Any, ...], params: Mapping[str, Any]
    ) -> Any:
        """Answer a call with further arguments; those by position have names first."""
        if args and not (params := self.named(method, X, args, params)):
            # all of them are defaults
            own = {"apply": self.apply, "predict_log_proba": self.predict_log_proba}
            if (call := own.get(method)) is not None:
                return call(X, self.entry_jobs)
            return self.answer(method, X, self.entry_jobs)
        return self.ask(method, X, **params)

    def named(
        self, method: str, X: Any, args: tuple[Any, ...], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return arguments by the names that they have in the model's own method."""
        if self.source.stored is not None:
            self.source.stored.refuse(
                f"{method} with arguments by position", "Pass them by their names."
            )
        if (called := getattr(self.source.model, method, None)) is None:
            n = f"2 positional arguments but {2 + len(args)} were given"
            raise TypeError(f"CompiledForest.{method}() takes {n}")
        names = signature(called)
        (_, *rest) = names.bind(X, *args).arguments.items()
        names.bind(X, *args, **params)  # an argument that is there twice
        changed = {k: v for k, v in rest if v is not names.parameters[k].default}
        return {**changed, **params}

    def _rounds_asked(self, params: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the rounds [begin, end) of arguments, None if the model must answer.

        It does if the arguments are others, or choose rounds that the forest lacks,
        because training stopped early.
        """
        source, names = self.source, ARGUMENTS.get(self.forest.source, ())
        if not source.staged or not params.keys() <= {*names}:
            return None
        if (rounds := self.module.parts[0].rounds) is None:
            return None
        last = params.get("iteration_range")
        to_end = last is None or np.array_equal(np.ravel(last)[1:], [0])
        if source.kind == "xgboost" and to_end:
            return 0, rounds.n  # to the best round, whichever is the first
        if self.forest.source == "lightgbm" and self._stopped_early:
            start = max(0, params.get("start_iteration") or 0)
            count = params.get("num_iteration")
            if count is None and not start:
                return 0, rounds.n
            if not 0 < (count or 0) <= rounds.n - start:
                return None
        try:
            return asked(rounds, params)
        except InvalidInputError:
            if source.model is None or not source.answers.labels:
                raise
            return None

    @property
    def _stopped_early(self) -> bool:
        model = self.source.stored or self.source.model
        best = getattr(model, "best_iteration_", getattr(model, "best_iteration", 0))
        return bool(best and best > 0)

    def rule(self, params: Mapping[str, Any]) -> Callable[[str, Any], Any]:
        """Return what makes answers of the raw scores for arguments."""
        spec, at = self.forest.answers, self._rounds_asked(params) if params else None
        if at is not None:
            spec = self.module.parts[0].rounds.spec(*at)
        return partial(answer, spec, self._classes)

    def _answer_rounds(
        self: Any, method: str, X: Any, params: Mapping[str, Any]
    ) -> Any:
        """Answer a call with arguments, None if the model itself must."""
        at = self._rounds_asked(params)
        if at is None or method not in METHODS:
            return None
        if at == (0, self.module.parts[0].rounds.n):
            return self.answer(method, X, self.entry_jobs)
        by, rows, _ = self.read(X, method)
        if rows is None:
            labels = self.source.answers.labels
            return None if labels else self._by_library(method, self.framed(X), params)
        jobs, (begin, end) = self.entry_jobs, at
        raw = by.engine.run("raw_of_rounds", rows, jobs, begin=begin, end=end)
        self.counters.add(self._route, len(raw))
        return self.rule(params)(method, raw)

    # ------------------------------------------------------------------- stages

    def staged(
        self: Any, method: str, X: Any, n_jobs: int | None, params: dict[str, Any]
    ) -> Iterator[Any]:
        """Yield a method's answers after each boosting round."""
        self.fingerprint.check()
        if self.stages_meet(method, X, params):
            yield from self.staged_by_kernels(method, X, n_jobs, params)
        else:
            yield from self.staged_by_library(method, self.framed(X), params)

    def staged_by_kernels(
        self: Any, method: str, X: Any, n_jobs: int | None, params: Mapping[str, Any]
    ) -> Iterator[Any]:
        source, chosen = self.source, self._stages_asked(method, params)
        rows = None
        if chosen is not None:
            base, *steps = chosen
            by, rows, _ = self.read(X, base)
        if rows is None:
            yield from self.staged_by_library(method, self.framed(X), params)
            return
        self.counters.add(self._route, rows.shape[0])
        for spec, raw in by.engine.stages(rows, *steps, n_jobs):
            rules = source.spec_of_stage(spec)
            yield source.stage(base, answer(rules, self._classes, base, raw))

    def _stages_asked(
        self, method: str, params: Mapping[str, Any]
    ) -> tuple[str, int, int, int] | None:
        """Return the method, rounds and step of a call, None for the model itself."""
        rounds = self.module.parts[0].rounds
        if rounds is None or self.forest.source != "catboost":
            return None if params or rounds is None else (method, 0, rounds.n, 1)
        rest, base = dict(params), method
        step, kind = rest.pop("eval_period", 1), rest.pop("prediction_type", None)
        if kind is None and method == "predict" and not self.forest.classifies:
            kind = "RawFormulaVal"  # whatever ``predict`` returns
        if kind is not None:
            base = self.source.same_method(method, {"prediction_type": kind}) or ""
        if not base or type(step) is not int or step < 1:
            return None
        rest["ntree_end"] = rest.get("ntree_end") or rounds.n
        at = self._rounds_asked(rest)
        return None if at is None else (base, *at, step)

    def some_stages(self: Any) -> tuple[int, ...]:
        """Return stages to compare, if the library predicts anew for each."""
        rounds, source = self.module.parts[0].rounds, self.source
        *_, last = ARGUMENTS.get(self.forest.source, ("",))
        asks = source.model is None or source.members or last in ("", "ntree_end")
        if asks or not rounds:
            return ()
        return tuple(sorted({1, (rounds.n + 1) // 2, rounds.n}))

    def staged_by_library(
        self: Any, method: str, X: Any, params: Mapping[str, Any], some: Any = ()
    ) -> Iterator[Any]:
        """Yield the library's stages, or some of them if it predicts anew for each."""
        source, name = self.source, f"staged_{method}"
        *_, last = ARGUMENTS.get(self.forest.source, ("",))
        if source.model is None or source.members or last in ("", "ntree_end"):
            for values in source.call(name, X, **params):
                self.counters.add(counters.LIBRARY, counters.rows_of(values))
                yield values
            return
        refuse_arguments(name, params)  # the libraries have no such method
        rounds = self.module.parts[0].rounds  # None: there are none
        for end in some or range(1, 1 + (rounds.n if rounds else 0)):
            chosen = (0, end) if last == "iteration_range" else end
            yield self._by_library(method, X, {last: chosen})

    def _by_library(self, method: str, X: Any, params: Mapping[str, Any]) -> Any:
        """Return the library's answer for some rounds; a Booster returns no labels."""
        labels = self.source.answers.labels
        answer = self.source.call(method if labels else "predict_raw", X, **params)
        self.counters.add(counters.LIBRARY, counters.rows_of(answer))
        return answer if labels else self.rule(params)(method, np.asarray(answer))
