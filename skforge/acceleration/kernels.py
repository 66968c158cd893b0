"""Compiled answers of one model: reading it, compiling it, answering rows.

Kernels answer what they certainly answer as the library does, without a warning: arrays
of floats and frames in the form of training. All else is left to the library.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from skforge.acceleration.libraries import is_known
from skforge.acceleration.watching import PACKAGES, UnwatchedError, Watch, is_booster
from skforge.compiler.target import Target
from skforge.engine.kernels import RangeKernels
from skforge.exceptions import UnsupportedModelError
from skforge.outputs.answers import of_scores
from skforge.prediction.choose_targets import choose, compiled
from skforge.prediction.door import Door
from skforge.prediction.forms_met import MOST_FORMS, FormsMet, Question
from skforge.prediction.kernel_checks import by_reference
from skforge.prediction.predictor import ForestPredictor
from skforge.schedule.schedule import Schedule
from skforge.sources.base import UnsureError, adapter_of
from skforge.sources.find import read_model, source_of
from skforge.sources.origins import FromFile

_FLOATS = np.dtype(np.float32), np.dtype(np.float64)
#: Names of what LightGBM is to print, and parameters of which it takes one of two names
#: without a word.
_LEVEL = frozenset(("verbose", "verbosity"))
_SILENT = frozenset(("n_jobs", "random_state", "n_estimators", "objective"))
#: What is imported where it is needed, which would be in a call.
_LATER = (
    *("skforge.engine.compiling", "skforge.compiler.defaults.cpu"),
    *("skforge.frontends.pipeline.model", "skforge.frontends.wrappers.model"),
)


def prepare() -> None:
    """Import what reads and compiles models: 0.3 s that no call has to wait for."""
    for name in _LATER:
        import_module(name)
    Target.host()
    adapter_of(None)  # imports them all


class Kernels:
    """The compiled code of a model, and the forms of rows that it may answer.

    Nothing here refers to the model itself, which would then never be freed.
    """

    def __init__(
        self,
        model: Any,
        methods: dict[str, Any],
        schedule: Any = "auto",
        threads: int | None = None,
    ) -> None:
        """Read the model; :meth:`compile` does what takes longer.

        Without a schedule, kernels are simple: they are compiled in a fifth of the
        time, and others may take their place; see :meth:`by`.
        """
        if why := refusal(model):
            raise UnwatchedError(why)
        self._kind, self.watch = type(model), Watch(model)
        forest = read_model(model)
        if forest.lacks_columns:
            raise UnsupportedModelError("The places of its categories are not known.")
        self.predictor = _predictor(forest, schedule, self.watch.twin(model))
        source = self.predictor.source
        if source.before or source.members or source.answers.by_members:
            raise UnsupportedModelError("Its members answer by themselves.")
        self.methods = {
            name: own
            for name, own in methods.items()
            if name not in self.predictor.by_leaves
        }
        #: A Booster's ``predict`` gives what its objective makes of the scores.
        self._transforms = is_booster(model)
        self.n_jobs = threads or threads_of(model)
        self._has_steps = "steps" in vars(model)
        #: Threads add up scikit-learn's trees as they finish: comparisons use one.
        self.in_order = getattr(model, "n_jobs", 1) in (None, 1)
        self.door = Door()
        #: What is called on the way to an answer, which programs may replace.
        self._functions = _functions_of(model)
        self.is_simple = schedule is None
        #: Whether the last comparison found that answers differ.
        self.differs = False
        #: Seconds that compiling took, and those of its last kernel.
        self.seconds = self.of_kernel = 0.0
        #: By module, the ranges of batch sizes that have their own kernel.
        self._own: dict[int, set[int]] = {}
        #: Whether another kernel is compiling.
        self.is_busy = False
        #: Seconds that telling whether the model is the same takes.
        self.overhead = 0.0
        _ = source._plain  # reads the model's names, once
        _let_go(source)

    def compile(
        self, rows: int, methods: Iterable[str], stop: Any = lambda: None
    ) -> None:
        """Compile the kernel for batches of a size, and the entries of methods.

        Batches of other sizes use the kernel of the nearest range, until they have
        their own. ``stop`` may raise between two steps.
        """
        start = thread_time()
        for place, kernels in enumerate(self._of_modules()):
            stop()
            number, own = kernels.number(rows), self._own.setdefault(place, set())
            every = range(len(kernels.ranges))
            own.add(number)
            kernels.lend(number, [i for i in every if _nearest(own, i) == number != i])
        self.of_kernel = thread_time() - start
        self.predictor.module.plan_threads(self.n_jobs)
        for method in filter(self._may_have_entry, methods):
            stop()
            self.predictor._seek_entry(method, self.n_jobs)
        self.seconds += thread_time() - start

    def by(self, schedule: Any) -> Kernels:
        """Return kernels of the same model by a schedule; none is compared yet."""
        other, known = copy.copy(self), self.predictor
        source = known.source
        other.predictor = _predictor(known.forest, schedule, source.model, source)
        other.door, other._own, other.seconds = Door(), {}, 0.0
        other.is_simple = other.is_busy = False
        return other

    def _of_modules(self) -> list[RangeKernels]:
        """Return the kernels of each module; of linear trees, those that find rows."""
        linear = self.predictor.forest.aggregate == "linear"
        modules = self.predictor.engine.modules
        return [(m.finder("row") if linear else m).kernels for m in modules]

    def _may_have_entry(self, method: str) -> bool:
        return method in self.methods and not self._transforms

    def lacks(self, method: str, rows: int) -> bool:
        """Tell whether a method's entry, or the kernel for a size, is not compiled."""
        known = self.predictor.entries
        return (self._may_have_entry(method) and method not in known) or any(
            kernels.number(rows) not in self._own[place]
            for place, kernels in enumerate(self._of_modules())
        )

    def has_part(self, part: Any) -> bool:
        return any(part is known for known in self.watch.parts)

    def agreed(self, method: str, X: Any) -> bool | None:
        return self.door.agreed(method, X)

    def answer(self, method: str, X: Any) -> Any:
        """Return an answer, or None if the library is to answer."""
        predictor = self.predictor
        source, is_array = predictor.source, type(X) is np.ndarray
        if not _errors_are_usual() or self._output_changes():
            return None  # the library's casts and steps may raise or warn
        if is_array:
            if X.dtype not in _FLOATS or X.ndim != 2 or not X.dtype.isnative:
                return None
        elif not is_frame(X):
            return None
        if source.form(X) is not None:
            return None
        entry = predictor.entries.get(method)
        direct = is_array and predictor._direct and not predictor._warning
        if direct and entry is not None and (answer := entry(X)) is not None:
            return answer
        read = source.read(X)
        if read is None or read[1] or not source.takes(read[0]):
            return None
        if entry is not None and (answer := entry(read[0])) is not None:
            return answer
        raw = predictor.engine.run("raw", read[0], self.n_jobs)
        if self._transforms:
            return of_scores(predictor.forest.answers, "transformed", raw)
        try:
            return predictor.of_scores(method, raw)
        except UnsureError:
            return None

    def _output_changes(self) -> bool:
        sklearn = sys.modules.get("sklearn")
        if sklearn is None or not self._has_steps:
            return False
        return bool(sklearn.get_config()["transform_output"] != "default")

    def is_same(self, model: Any) -> bool:
        """Tell whether the model, and its library's code, are those compiled."""
        start = perf_counter()
        known = [names.get(name) is own for names, name, own in self._functions]
        same = type(model) is self._kind and all(known) and self.watch.same(model)
        seconds = perf_counter() - start
        self.overhead = min(self.overhead or seconds, seconds)
        return same

    def expected(self, model: Any, method: str, X: Any) -> Any:
        """Return the library's own answer, in its order of trees."""
        if self.in_order:
            return self.methods[method](model, X)
        from joblib import parallel_config

        with parallel_config("sequential"):
            return self.methods[method](model, X)

    def compare(self, model: Any, method: str, X: Any, expected: Any) -> str:
        """Let rows of a new form meet the model; return why kernels may not answer."""
        self.differs = False
        self.predictor.of_rows(X)  # looks into forms that steps make otherwise
        if (answer := self.answer(method, X)) is None:
            return "kernels do not take such rows"
        few = self.door.few(X)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.expected(model, method, few)
        if caught:
            return f"the library warns: {caught[0].message}"
        if not self.in_order:
            expected = self.expected(model, method, X)
        if isinstance(expected, np.memmap):  # of a model that lies in a mapped file
            return "the library answers with an array of a mapped file"
        self.differs = True
        if why := unlike(answer, expected):
            return why

        def ours(rows: Any) -> Any:
            answer = self.answer(method, rows)
            return NotImplemented if answer is None else answer

        theirs = partial(self.expected, model, method)
        question = Question(self.predictor, method, ours, theirs)
        found = self.door.compare(question, X, answer)
        if found is None:
            return ""
        return f"kernels give {found.value}, and the library {found.expected}"

    def note(self, method: str, X: Any, agreed: bool) -> bool:
        """Keep what was found; return whether further forms would be told apart."""
        met = self.door._met.setdefault(method, FormsMet())
        met.add(X, agreed)
        return len(met) < MOST_FORMS


def _predictor(
    forest: Any, schedule: Any, model: Any, source: Any = None
) -> ForestPredictor:
    schedule = Schedule() if schedule is None else schedule
    choice = choose(schedule, None, forest, "cpu", "exact")
    module = compiled(forest, choice, "exact", None)
    by_reference(module)
    predictor = ForestPredictor(module, source or source_of(model, forest))
    predictor.fingerprint = _NeverChecked()  # type: ignore[assignment]
    return predictor


def _nearest(own: set[int], number: int) -> int:
    return min(own, key=lambda known: abs(known - number))


class _NeverChecked:
    """Takes the place of a fingerprint, which refers to its model; see ``Watch``."""

    def check(self) -> None:
        return None


#: Functions that answers of libraries go through, where a class has them.
_CALLED = (
    *("predict", "predict_proba", "decision_function", "score_samples", "get_booster"),
    *("_validate_X_predict", "_raw_predict", "_predict", "inplace_predict"),
    *("_process_predict_input_data", "_iter", "transform"),
)


def _functions_of(model: Any) -> list[tuple[Mapping[str, Any], str, Any]]:
    """Return what programs might replace: functions of the model and of its parts."""
    parts = [model, *vars(model).values()]
    parts += [step[-1] for step in vars(model).get("steps", ())]
    trees = getattr(model, "estimators_", None)
    if trees is not None and len(trees):
        parts.append(np.ravel(np.asarray(trees, dtype=object))[0])
    functions: list[tuple[Mapping[str, Any], str, Any]] = []
    kinds = {type(part) for part in parts}
    for kind in (k for k in kinds if k.__module__.partition(".")[0] in PACKAGES):
        for name in (name for name in _CALLED if hasattr(kind, name)):
            for base in kind.__mro__:
                functions.append((vars(base), name, vars(base).get(name)))
                if name in vars(base):
                    break
    return functions


def is_frame(X: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and type(X) is pandas.DataFrame


def _errors_are_usual() -> bool:
    """Tell whether NumPy is to raise no errors, and to warn of none by underflow."""
    errors = np.geterr()
    others = {errors["over"], errors["divide"], errors["invalid"]}
    return errors["under"] == "ignore" and others <= {"warn", "ignore"}


def refusal(model: Any) -> str:
    """Return why a model's answers are more than its trees', or ""."""
    if not is_known(model):
        return "it is of a subclass, which may do anything"
    last = vars(model)["steps"][-1][1] if "steps" in vars(model) else model
    if getattr(last, "verbose", None) and hasattr(last, "estimators_"):
        return "it prints what it does"
    if (further := getattr(last, "_other_params", {})) and _ignores(last, further):
        return "it prints which of its parameters it ignores"
    device = getattr(last, "device", None)
    if hasattr(last, "save_config"):
        device = _parameters_of(last)["device"]
    if device is not None and str(device).partition(":")[0] != "cpu":
        return "it answers on a GPU"
    return ""


def _ignores(model: Any, further: Mapping[str, Any]) -> bool:
    """Tell whether LightGBM, in each call, prints which parameters it ignores.

    It does of those that it does not know, and of two names of one.
    """
    from lightgbm.basic import _ConfigAliases as Aliases

    told = _LEVEL & further.keys()
    if told and all(further[name] == -1 for name in told):
        return False
    names = further.keys() - told
    own = model.get_params(deep=False).keys() - further.keys() - _SILENT
    each = [{*group} for group in Aliases._get_all_param_aliases().values()]
    twice = (own & group and names & group for group in each)
    return any(twice) or not names.issubset(set[str]().union(*each))


def _parameters_of(booster: Any) -> dict[str, str]:
    """Return what a Booster of XGBoost says of its device and threads."""
    parameters: dict[str, str] = json.loads(booster.save_config())["learner"][
        "generic_param"
    ]
    return parameters


def threads_of(model: Any) -> int | None:
    """Return how many threads kernels may use: as many as the library does."""
    last = vars(model)["steps"][-1][1] if "steps" in vars(model) else model
    if hasattr(last, "save_config"):
        return int(_parameters_of(last)["nthread"]) or -1
    if not hasattr(last, "n_jobs"):
        by_one = "GradientBoosting" in type(last).__name__
        by_one &= "Hist" not in type(last).__name__
        return 1 if by_one or "AdaBoost" in type(last).__name__ else -1
    jobs = last.n_jobs
    if type(last).__module__.startswith("sklearn."):
        return jobs if jobs is None or isinstance(jobs, int) else 1
    return jobs if isinstance(jobs, int) and jobs > 0 else -1


def _dtype(answer: Any) -> Any:
    return answer.dtype


def _strides(answer: Any) -> list[int]:
    """Return the strides by which memory is read: not those of one row or column."""
    pairs = zip(answer.strides, answer.shape, strict=True)
    return [stride for stride, n in pairs if n > 1 and answer.size]


def unlike(answer: Any, expected: Any) -> str:
    """Return how an answer differs from the library's in any respect, or ""."""
    if type(answer) is not type(expected):
        return f"kernels give {type(answer).__name__}"
    if isinstance(answer, list):
        if len(answer) != len(expected):
            return "kernels give another number of arrays"
        return next(filter(None, map(unlike, answer, expected)), "")
    if not isinstance(answer, np.ndarray):
        return "an answer that is no array"
    for name, look in (("dtype", _dtype), ("shape", np.shape), ("strides", _strides)):
        ours, theirs = look(answer), look(expected)
        if ours != theirs:
            return f"kernels give {name} {ours}, and the library {theirs}"
    if answer.flags.writeable != expected.flags.writeable:
        return "one of the answers cannot be written to"
    if answer.dtype == object:
        same = answer.tolist() == expected.tolist() and [
            *map(type, answer.ravel())
        ] == [*map(type, expected.ravel())]
    else:
        same = answer.tobytes() == expected.tobytes()
    return "" if same else "kernels give other values"


def _let_go(source: Any) -> None:
    """Forget a Booster itself, which has no twin: rows are read without it."""
    if is_booster(source.model):
        source.origin = FromFile(None)
        if hasattr(source, "_booster"):
            source._booster = None
