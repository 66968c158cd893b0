"""Random models with parameters that users rarely set, beside what is compiled of them.

Live, from pickles, from ``.skforge`` files and from the library's own, a model must
have the library's bits in every method, or be refused. Of most, the reference answers,
which is quick: parameters are what frontends and adapters have to know of a model.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import skforge
from skforge import CompiledForest, Schedule, compile_forest, load_forest
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.forest.rounds import ends_in_bias
from skforge.outputs.answers import of_scores
from skforge.prediction.dividing import read_divided
from skforge.prediction.given_rows import GivenRows
from skforge.rows.readers import reader_of
from skforge.sources.find import source_of
from tests.by_reference import answer, stored_of
from tests.compared_calls import Call, apart, called
from tests.fuzz_pipelines import Outcome
from tests.plain import plain
from tests.random_parameters import LIBRARIES, WIDTH, Calls, Case
from tests.random_pipelines import Choose, chooser

#: Errors of files and modules, which have no library that could answer instead.
ALONE = ("SourceNeededError", "InvalidInputError", "UnsupportedModelError")
#: Names of a module's methods, by those of calls.
OF_MODULES = {"value": "predict", "leaf": "apply", "predict_raw": "predict_raw"}
OF_SCORES = ("predict", "predict_proba", "decision_function", "score_samples")
#: Values that users rarely have.
ODD = (np.inf, -np.inf, 1e38, -0.0, 1e-40, 0.0)
#: Draws until a library trains a model: it may refuse what parameters say together.
TRIES = 9


class ByReference:
    """The methods of a model, live or stored, by its reference."""

    def __init__(self, source: Any, model: Any) -> None:
        self._how = source, model

    def __getattr__(self, name: str) -> Any:
        if name not in (*OF_SCORES, "predict_raw"):
            raise AttributeError(name)
        return partial(answer, *self._how, name)


class Module:
    """The methods of a file by its reference."""

    def __init__(self, content: Any) -> None:
        self._forest = load_forest(content)

    def _raw(self, X: Any) -> Any:
        return reference_raw(self._forest, reader_of(self._forest).rows(X))

    def predict_raw(self, X: Any) -> Any:
        raw = self._raw(X)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def predict(self, X: Any) -> Any:
        return of_scores(self._forest.answers, "transformed", self._raw(X))

    def apply(self, X: Any) -> Any:
        forest = self._forest
        places = reference_leaves(forest, reader_of(forest).rows(X))
        leaves = forest.source_node[places]
        return leaves[:, :-1] if ends_in_bias(forest) else leaves


def attempt(seed: int) -> tuple[str, Outcome]:
    """Return the library of a seed, and what became of its model."""
    library, outcome = [*LIBRARIES][seed % len(LIBRARIES)], Outcome()
    random = np.random.default_rng([seed, 3])
    choose = chooser(random)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(TRIES):
            try:
                case = LIBRARIES[library](choose, random)
                for call in case.calls.values():
                    call(case.X)
            except Exception as error:  # noqa: BLE001 - the library's own
                outcome.not_fitted.append(f"{type(error).__name__}: {error}"[:200])
                continue
            compare(case, choose, random, outcome)
            break
    return library, outcome


def compare(
    case: Case, choose: Choose, random: np.random.Generator, outcome: Outcome
) -> None:
    """Compare a model's calls in all its forms."""
    outcome.how = case.how
    named = isinstance(case.X, pd.DataFrame) and case.X["c"].dtype.kind != "f"
    hashed = named and "CatBoost" in str(type(case.model))  # by machine code alone
    compiles = hashed or choose([False] * 4 + [True])
    default = compiles and choose([False] * 7 + [True])
    forms: dict[str, tuple[Any, Calls]] = {}
    forest = None
    makers = [
        partial(_forms, case, default) if compiles else partial(_by_reference, case)
    ]
    makers += [
        partial(_of_file, name, default, compiles, *file)
        for name, file in case.files.items()
    ]
    for make in makers:
        try:
            for name, model, calls, forest_ in make():
                forms[name], forest = (model, calls), forest or forest_
        except (UnsupportedModelError, InvalidModelError) as error:
            outcome.refused.append(str(error))
        except Exception as error:  # noqa: BLE001 - an answer was promised
            outcome.differs.append(f"{type(error).__name__}: {error}"[:600])
    for rows in [*rows_of(choose, random, case, forest)]:
        for form, (model, calls) in forms.items():
            for name, own in calls.items():
                ours = _ours(model, name, case.ends, form.startswith("file"))
                live = compiles and form in ("live", "pickle")
                if ours is None and live and name not in ("leaf", "value"):
                    outcome.differs.append(f"{form} lacks {name}")
                if ours is None or (not compiles and " " in name):
                    continue
                found, theirs = called(ours, rows), called(own, rows)
                if found[0] is None and not found[1]:
                    continue  # the model itself would answer
                outcome.calls += 1
                outcome.rows += len(rows)
                if form not in ("live", "pickle") and found[1].startswith(ALONE):
                    outcome.refused.append(f"{form}, {name}: {found[1]}")
                elif why := _apart(found, theirs, rows, form, name):
                    outcome.differs.append(f"{form}, {name} of {len(rows)}: {why}")


Forms = Iterator[tuple[str, Any, Calls, Forest | None]]


def _forms(case: Case, default: bool) -> Forms:
    how = CompiledForest(case.model, tuning="off") if default else plain(case.model)
    fast = how.fit(case.X)
    yield "live", fast, case.calls, fast.forest_
    yield "pickle", pickle.loads(pickle.dumps(fast)), case.calls, None
    skforge.save(fast, file := io.BytesIO())
    yield "artifact", skforge.load(file.getvalue()), case.calls, None


def _by_reference(case: Case) -> Forms:
    source, _ = read_divided(case.model, GivenRows(case.X))
    yield "live", ByReference(source, case.model), case.calls, source.forest
    stored = stored_of(case.model, source.forest)
    again = ByReference(source_of(stored, source.forest), stored)
    yield "artifact", again, case.calls, None


def _of_file(
    name: str, default: bool, compiles: bool, content: Any, calls: Calls
) -> Forms:
    module: Any = Module(content) if not compiles else None
    if compiles:
        module = compile_forest(content, None if default else Schedule())
    yield f"file {name}", module, calls, None


def _ours(
    model: Any, name: str, ends: dict[str, Any], of_file: bool
) -> Callable[[Any], Any] | None:
    """Return a model's method for a call; None if it has none."""
    method, _, ranged = name.partition(" ")
    if of_file:
        method = OF_MODULES[method]
    elif method == "value":  # of a Booster; classifiers give labels
        method = "" if hasattr(model, "predict_proba") else "predict"
    ask = getattr(model, method, None)
    if ask is None or not ranged:
        staged = ask is not None and method.startswith("staged")
        return (lambda rows: [*ask(rows)]) if staged else ask
    return partial(ask, **ends)


def _apart(found: Call, theirs: Call, rows: Any, form: str, name: str) -> str:
    if form in ("live", "pickle"):
        return apart(found, theirs, rows)
    if theirs[1] or found[1]:  # files may read what the library does not
        return "" if theirs[1] else found[1]
    if form.startswith("file"):  # modules have rows of their own order and warnings
        found, theirs = ((one[0].copy(), "", []) for one in (found, theirs))
        if name == "leaf":
            shape = len(rows), -1
            found, theirs = (
                (one[0].reshape(shape).astype(int), "", []) for one in (found, theirs)
            )
    return apart(found, theirs, rows)


def rows_of(
    choose: Choose, random: np.random.Generator, case: Case, forest: Any
) -> Iterator[Any]:
    """Yield rows of training, few of them, and some on and beside thresholds."""
    X, n = case.X, 65
    yield X
    yield X[: choose([1, 2, 9])]
    if forest is None:
        return
    with np.errstate(all="ignore"):
        near = draw_rows(forest, n, int(random.integers(99)), missing=0.2)[:, :WIDTH]
        if isinstance(X, np.ndarray):
            near = near.astype(X.dtype)
            if choose([True, False]):
                near[random.random(near.shape) < 0.1] = choose(ODD)
            yield near
        else:
            frame = X.iloc[random.integers(0, len(X), n)].reset_index(drop=True)
            for at, name in enumerate(frame):
                if frame[name].dtype.kind == "f" and at < near.shape[1]:
                    frame[name] = near[:, at].astype(frame[name].dtype)
            yield frame
