"""Compares a random model, compiled, with itself on rows of many forms.

The model is the judge, on one thread. In exact mode every bit, error and warning must
be the model's own. In the other modes raw scores may be off by the documented bound,
and a row's answer must be the model's own or the one that its raw scores stand for.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

import skforge
from skforge import CompiledForest, InvalidInputError, UnsupportedModelError
from skforge.exceptions import SourceNeededError
from skforge.forest.reference import sum_limits
from skforge.sources.base import UnsureError
from skforge.sources.wrappers.members import MembersSource
from tests.compared_calls import Call, apart, called
from tests.plain import plain
from tests.random_pipelines import (
    Choose,
    chooser,
    draw_pipeline,
    draw_steps,
    draw_table,
)
from tests.random_roles import draw_roles
from tests.random_rows import every, framed, is_mapped, values_of
from tests.random_wrappers import Example, draw_example

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
#: Methods that compiled models may have where the model has none.
MORE = ("score_samples", "apply", "transform")
STAGES = ("staged_predict", "staged_predict_proba", "staged_decision_function")
POLARS = pl.DataFrame, pl.LazyFrame
#: Wider models say nothing more, and take long.
MOST_COLUMNS = 300
#: Draws until a model can be fitted.
TRIES = 50


@dataclass(slots=True)
class Outcome:
    """What became of a model.

    ``differs`` has a text for each call that differs, and ``refused`` the reasons of
    models drawn before this one that skforge does not support.
    """

    how: str = ""
    differs: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    not_fitted: list[str] = field(default_factory=list)
    calls: int = 0
    rows: int = 0
    example: str = ""


def attempt(
    numbers: Sequence[int],
    n_forms: int,
    draw: Callable[[Choose], Example],
    setting: Setting | None,
) -> Outcome:
    """Draw models from numbers until one can be compiled; compare it."""
    random = np.random.default_rng(numbers)
    choose = chooser(random)
    outcome = Outcome()
    for _ in range(TRIES):
        draw_and_compare(choose, random, n_forms, draw, setting, outcome)
        if outcome.how:
            break
    return outcome


def draw_and_compare(
    choose: Choose,
    random: np.random.Generator,
    n_forms: int,
    draw: Callable[[Choose], Example],
    setting: Setting | None,
    outcome: Outcome,
) -> None:
    """Draw one model and compare it, if it can be fitted and compiled."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            example = draw(choose)
        except Exception as error:  # noqa: BLE001 - a frozen model is fitted here
            outcome.not_fitted.append(f"{type(error).__name__}: {error}"[:200])
            return
    setting = Setting.draw(choose) if setting is None else setting
    compare(example, setting, random, n_forms, outcome)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is given to ``CompiledForest``, and what is compared."""

    way: str = "fitted"
    reduction: str = "exact"
    n_sample: int = 120
    warm: bool = False
    default_schedules: bool = False
    n_jobs: int | None = None
    copies: bool = False
    #: Whether all methods are asked, and rows one by one; attributes are read, too.
    all_methods: bool = False

    @classmethod
    def draw(cls, choose: Choose) -> Setting:
        """Draw all of it."""
        return cls(
            choose(["fitted"] * 4 + ["trains", "frozen", "search"]),
            choose(["exact", "exact", "fast", "reproducible"]),
            choose([120, 120, 0, 1, 7]),
            choose([False, True]),
            choose([False] * 14 + [True]),
            choose([None, None, None, 2]),
            choose([False, False, True]),
        )

    def fitted(self, example: Example) -> Any:
        """Fit the model, or None if ``CompiledForest`` does; a search is around it."""
        model = example.model
        if self.way == "trains":
            return None
        if self.way == "search" and not isinstance(model, GridSearchCV):
            example = replace(example, model=GridSearchCV(model, {}, cv=2))
        model = example.fitted()
        return FrozenEstimator(model) if self.way == "frozen" else model

    def compiled(self, model: Any, example: Example, reduction: str) -> CompiledForest:
        """Compile the model, with sample rows; ``None`` is trained first."""
        how: dict[str, Any] = {"n_jobs": self.n_jobs, "reduction": reduction}
        given = example.model if model is None else model
        if self.default_schedules:
            fast = CompiledForest(given, tuning="off", **how)
        else:
            fast = plain(given, **how)
        if model is None:
            return fast.fit(example.X, example.y)
        return fast.fit(example.X[: self.n_sample])


def compare(
    example: Example,
    setting: Setting,
    random: np.random.Generator,
    n_forms: int,
    outcome: Outcome,
) -> None:
    """Compile a model and compare its calls on ``n_forms`` drawn rows."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            judge = setting.fitted(example)
            trained = judge
            if trained is None:
                trained = clone(example.model).fit(example.X, example.y)
            trained.predict(example.X)
            if setting.n_sample:  # fewer rows may be rounded otherwise, and refused
                trained.predict(example.X[: setting.n_sample])
        except Exception as error:  # noqa: BLE001 - of any part
            outcome.not_fitted.append(f"{type(error).__name__}: {error}"[:200])
            return
        try:
            exact = setting.compiled(judge, example, "exact")
            if exact.forest_.n_features > MOST_COLUMNS:
                outcome.not_fitted.append("too wide")
                return
            judge = exact.estimator_ if judge is None else judge
            fast = exact
            if setting.reduction != "exact":
                fast = setting.compiled(judge, example, setting.reduction)
                if isinstance(fast._compiled().source, MembersSource):
                    fast = exact  # it has no raw scores, to which a bound applies
        except UnsupportedModelError as error:
            outcome.refused.append(str(error))
            return
        except Exception as error:  # noqa: BLE001 - an answer was promised
            if "X has 0 rows" in str(error):  # which members cannot be compiled with
                outcome.refused.append(str(error))
                return
            outcome.how = f"{setting}"
            outcome.example = str(example)
            outcome.differs.append(f"fit: {type(error).__name__}: {error}"[:600])
            return
    outcome.how = f"{setting}"
    comparing = _Comparing(example, judge, exact, fast, setting, random, outcome)
    comparing.run(n_forms)
    if outcome.differs:
        outcome.example = str(example)


class _Comparing:
    """Compares the calls of one compiled model."""

    def __init__(
        self,
        example: Example,
        judge: Any,
        exact: CompiledForest,
        fast: CompiledForest,
        setting: Setting,
        random: np.random.Generator,
        outcome: Outcome,
    ) -> None:
        self._example, self._judge, self._exact, self._fast = (
            *(example, judge, exact),
            fast,
        )
        self._random, self._outcome, self._setting = random, outcome, setting
        self._named = (
            example.table.names is not None
            and hasattr(judge, "feature_names_in_")
            and [*judge.feature_names_in_] == example.table.names
        )

    def run(self, n_forms: int) -> None:
        """Compare methods on drawn rows; some also by pickles and artifacts."""
        fast, differs = self._fast, self._outcome.differs
        methods = [name for name in METHODS if hasattr(self._judge, name)]
        if wrong := [n for n in METHODS if hasattr(fast, n) != (n in methods)]:
            differs.append(f"only one has {wrong}")
            return
        if self._setting.warm:
            fast.warm_up()
        copies = dict(self._copies())
        if self._setting.all_methods:
            for name, copy in {"live": fast, **copies}.items():
                self._attributes(name, copy)
        cuts = cuts_of(fast)
        drawn = every(self._example.table, cuts, self._random)
        for word, rows in islice(drawn, n_forms):
            judged = self._frame_of(rows)
            if judged is None:
                continue
            more = [methods[int(self._random.integers(len(methods)))]]
            if self._setting.all_methods:
                if (
                    isinstance(rows, POLARS)
                    and "catboost" in type(self._judge).__module__
                ):
                    continue  # numbers in place of categories end the process
                more = [*methods, *self._more(rows)]
                self._in_parts(word, judged, copies)
            for method in dict.fromkeys(("predict", *more)):
                theirs = called(_method(self._judge, method), judged)
                self._check(f"{method} of {word}", method, rows, theirs)
                for name, copy in copies.items():
                    ours = called(lambda X, c=copy, m=method: _method(c, m)(X), rows)
                    self._count(rows)
                    lenient = self._setting.all_methods
                    found = _of_a_copy(name, ours, theirs, rows, lenient)
                    if found and name == "pickle":  # steps of copies round otherwise
                        copied = pickle.loads(pickle.dumps(self._judge))
                        found = apart(
                            ours, called(_method(copied, method), judged), rows
                        )
                    if found:
                        differs.append(f"{name}: {method} of {word}: {found}")
            if len(differs) > 3:
                return

    def _more(self, rows: Any) -> Iterator[str]:
        """Yield the methods that not all have, where both do."""
        width = (getattr(rows, "shape", None) or (0, 0))[1:2]
        wide = width > (len(self._example.table.kinds),)
        for name in (*MORE, *STAGES):
            # XGBoost's apply writes behind its memory where rows are too wide
            both = hasattr(self._judge, name) and hasattr(self._fast, name)
            if both and not (name == "apply" and wide):
                yield name

    def _in_parts(self, word: str, rows: Any, copies: dict[str, Any]) -> None:
        """Compare the answers to rows one by one, as they are joined."""
        if not isinstance(rows, (np.ndarray, pd.DataFrame)) or not len(rows):
            return
        take = getattr(rows, "iloc", rows)

        def joined(model: Any) -> Call:
            parts = (model.predict(take[i : i + 1]) for i in range(len(rows)))
            return called(lambda _: np.concatenate([*map(np.asarray, parts)]), rows)

        theirs = joined(self._judge)
        found = apart(joined(self._fast), theirs, rows)
        if not found and "artifact" in copies:  # steps of pickles may round otherwise
            ours = joined(copies["artifact"])
            found = _of_a_copy("artifact", ours, theirs, rows, lenient=True)
        self._count(rows)
        if found:
            self._outcome.differs.append(f"rows of {word} one by one: {found}")

    def _attributes(self, name: str, fast: Any) -> None:
        """Compare fitted attributes that are plain values, as pickles keep them."""
        model = pickle.loads(pickle.dumps(self._judge))
        for attribute in dir(model):
            if attribute[0] == "_" or attribute[-1] != "_":
                continue
            wanted = called(lambda _, a=attribute: getattr(model, a), None)
            if isinstance(wanted[0], (np.ndarray, int, float, str, np.generic)):
                found = called(lambda _, a=attribute: getattr(fast, a), None)
                if (
                    found[1].startswith("AttributeError")
                    or attribute == "n_features_in_"
                ):
                    continue  # CatBoost's pickles say 0
                ours, theirs = np.asarray(found[0]), np.asarray(wanted[0])
                if found[1] or ours.dtype != theirs.dtype or str(ours) != str(theirs):
                    text = f"{found[1] or ours!r}, not {theirs!r}"
                    self._outcome.differs.append(f"{name}: {attribute}: {text}")

    def _check(self, word: str, method: str, rows: Any, theirs: Any) -> None:
        fast, differs = self._fast, self._outcome.differs
        ours = called(_method(fast, method), rows)
        self._count(rows)
        also = None
        if fast is not self._exact and not theirs[1] and not ours[1]:
            raw, found = self._raw(rows)
            if found:
                differs.append(f"raw scores, {word}: {found}")
            also = None if raw is None else self._of_scores(method, raw)
        if found := apart(ours, theirs, rows, also):
            differs.append(f"{word}: {found}")

    def _count(self, rows: Any) -> None:
        self._outcome.calls += 1
        n = getattr(rows, "shape", None)
        self._outcome.rows += (
            n[0] if n else (len(rows) if hasattr(rows, "__len__") else 1)
        )

    # ------------------------------------------------------------ rows

    def _frame_of(self, rows: Any) -> Any:
        """Return rows for the judge; None if there are none that mean the same."""
        if not is_mapped(rows):
            return rows
        table, reads = self._example.table, self._example.reads
        known = {"forests": True, "steps": False}.get(reads)
        categories = [
            name
            for name, kind in zip(table.names or [], table.kinds, strict=True)
            if kind in ("category", "codes")
        ]
        if not self._named or (categories and known is None):
            return None
        if known and any(_unseen(rows, table, name) for name in categories):
            return None  # refused, or missing: the libraries do not agree
        try:
            columns = self._fast._compiled().source.columns()
        except InvalidInputError:  # XGBoost cut the names of categories
            return None
        gaps = {} if columns is None else {one.name: one.gap for one in columns.rules}
        return framed(rows, table, bool(known), gaps)

    # ------------------------------------------------------------ other modes

    def _raw(self, rows: Any) -> tuple[Any, str]:
        """Return raw scores, and how they are farther off than they may be."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                found = self._fast.predict_raw(rows)
                expected = self._exact.predict_raw(rows)
            except Exception as error:  # noqa: BLE001 - the methods answered
                return None, f"{type(error).__name__}: {error}"
            if found.dtype != expected.dtype or found.shape != expected.shape:
                return found, f"{found.dtype} {found.shape}, not {expected.shape}"
            off = np.abs(found.astype(float) - expected)
            off = np.where(found == expected, 0.0, off)
            if not off.any():
                return found, ""
            limits = self._limits(rows)
        if limits is None:
            return found, "differ where the model itself answers"
        off = off.reshape(limits.shape)  # CatBoost's of one row may be a number
        wrong = np.flatnonzero((off > limits).any(axis=1))
        if not len(wrong):
            return found, ""
        at = wrong[0]
        return found, f"row {at} is off by {off[at]}, more than {limits[at]}"

    def _limits(self, rows: Any) -> Any:
        predictor = self._exact._compiled()
        framed = predictor.framed(rows)
        if predictor.source.read(framed) is None:
            predictor = predictor.of_form(framed) or predictor
        source = predictor.source
        prepared = source.prepared(framed)
        found = source.read(prepared)
        fine = found is not None and source.takes(found[0])
        read = found[0] if fine else source.rows(prepared, "predict_raw")
        if read is None:
            return None
        read = read.toarray() if hasattr(read, "toarray") else read
        columns = []
        for forest in (predictor.forest, *source.answers.more):
            limit = sum_limits(forest, read, "fast")
            columns += [limit] * forest.n_outputs
        return np.column_stack(columns)

    def _of_scores(self, method: str, raw: Any) -> Any:
        """Return what a method makes of raw scores; None if that is not certain."""
        log = method == "predict_log_proba"
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                answer = self._fast._compiled().of_scores(
                    "predict_proba" if log else method, raw
                )
                if not log:
                    return answer
                if isinstance(answer, list):
                    return [np.log(one) for one in answer]
                return np.log(answer)
        except UnsureError:
            return None

    # ------------------------------------------------------------ copies

    def _copies(self) -> Iterator[tuple[str, Any]]:
        """Yield the model from a pickle, and from a file if one can hold it."""
        if self._fast is not self._exact or not self._setting.copies:
            return
        yield "pickle", pickle.loads(pickle.dumps(self._fast))
        try:
            skforge.save(self._fast, file := io.BytesIO())
        except UnsupportedModelError:
            return
        yield "artifact", skforge.load(file.getvalue())
        yield "artifact, anew", _Anew(file.getvalue())


def _method(model: Any, name: str) -> Callable[[Any], Any]:
    own = getattr(model, name)
    return (lambda rows: [*own(rows)]) if name in STAGES else own


class _Anew:
    """A file that is loaded for each call, as far as what it asks for needs."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(skforge.load(self._content), name)


def _of_a_copy(name: str, ours: Any, theirs: Any, rows: Any, lenient: bool) -> str:
    """Return how a copy's call differs; an artifact may need its model, and say so."""
    if name != "pickle":
        if any(isinstance(a, np.ndarray) and not len(a) for a in (ours[0], theirs[0])):
            return ""  # without rows: it has no library that would look at them
        flat = "InvalidInputError: rows must be two-dimensional"
        ragged = "InvalidInputError: rows do not form a rectangular array"  # or a frame
        needed = ours[1].startswith((SourceNeededError.__name__, flat, ragged))
        if needed or (ours[1] and theirs[1]):
            return ""
        if lenient and (theirs[1] or ours[1].startswith("InvalidInputError")):
            return ""  # categories of other kinds, and tables that the library refuses
    return apart(ours, theirs, rows)


def _unseen(rows: Any, table: Any, name: str) -> bool:
    known = {*table.X[name].cat.categories}
    values = values_of(rows, name)
    return any(value not in known and value == value for value in values)


def cuts_of(fast: CompiledForest) -> Callable[[int], Any]:
    """Return a function from a column to values at which some answer changes."""
    source = fast._compiled().source
    sources, knowns = [source], []
    while sources:
        one = sources.pop()
        knowns += [one._known] if hasattr(one, "_known") else []
        sources += getattr(one, "_readers", [])
    forests = [source.forest, *source.answers.more]

    def of(column: int) -> Any:
        found = [one.threshold[one.feature == column] for one in forests]
        for known in knowns:
            bounds = known.bounds
            found += [bounds.low[column : column + 1], bounds.high[column : column + 1]]
            if column in known.numbers:
                found.append(known.numbers[column].ends)
        return np.concatenate(found)

    return of


# ---------------------------------------------------------------- ways to draw


def _pipeline(choose: Choose) -> Example:
    table = draw_table(choose)
    steps = choose([(1, 2), (3, 4, 5, 6)])
    return Example(table, table.X, table.y, draw_pipeline(choose, table, steps))


def _steps_that_refuse(choose: Choose) -> Example:
    table = draw_table(choose)
    return Example(table, table.X, table.y, draw_steps(choose, table))


#: By name: how a model is drawn, and its setting; None for one that is drawn, too.
DRAWN: dict[str, tuple[Callable[[Choose], Example], Setting | None]] = {
    "random pipelines": (_pipeline, Setting(default_schedules=True, copies=True)),
    "random steps that refuse rows": (_steps_that_refuse, Setting(copies=True)),
    "random wrappers": (draw_example, None),
}
#: Columns in every role, whose models are asked by every method.
ROLES = (
    draw_roles,
    Setting(n_sample=20, default_schedules=True, copies=True, all_methods=True),
)
