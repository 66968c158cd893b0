"""What a wrapped method does with a call: ask kernels, or the library and its clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from skforge.acceleration.compiling import COMPILER, StoppedError
from skforge.acceleration.estimate import seconds_to_compile
from skforge.acceleration.libraries import is_known
from skforge.acceleration.records import (
    RECORDS,
    ModelRecord,
    add,
    changed,
    records_with,
)
from skforge.acceleration.settings import ACTIVE, Settings
from skforge.runtime.float_errors import own_arithmetic
from skforge.runtime.log import INFO, WARNING, log

Own = Callable[..., Any]

#: Multiples of it, without their whole parts, spread evenly and have no period.
_GOLDEN = 0.618033988749895

#: Classes whose length is known without work, as those of Dask's frames is not.
_SIZED: set[type] = {list, tuple}


class _Nothing:
    """Stands for a model that cannot be known."""


_NOTHING = _Nothing()
_LEFT = ModelRecord(_NOTHING, "it cannot be watched")

#: By class and method, the function that is wrapped, which is the library's own.
OWN: dict[tuple[type, str], Own] = {}


def answering(own: Own, method: str) -> Own:
    """Return what takes the place of a library's method that answers rows."""
    thread, records = ACTIVE.thread, RECORDS

    def asked(self: Any, *args: Any, **named: Any) -> Any:
        if len(args) != 1 or named or thread.inside:
            return own(self, *args, **named)
        record = records.get(id(self))
        if record is None:
            if ACTIVE.settings is None:
                return own(self, *args)
            record = _first(self)
        if record.state == "left" or ACTIVE.settings is None:
            return own(self, *args)
        return _answer(record, self, method, own, args[0], ACTIVE.settings)

    return asked


def changing(own: Own) -> Own:
    """Return what takes the place of a method that trains or changes its object."""
    thread = ACTIVE.thread

    def changes(self: Any, *args: Any, **named: Any) -> Any:
        before, thread.inside = thread.inside, True
        changed(self)
        try:
            return own(self, *args, **named)
        finally:
            thread.inside = before
            changed(self)

    return changes


def _is_sized(kind: type) -> bool:
    known = kind.__module__.partition(".")[0] in ("numpy", "pandas")
    if known and hasattr(kind, "__len__"):
        _SIZED.add(kind)
    return kind in _SIZED


def leaving(own: Own) -> Own:
    """Return what takes the place of a method that hands out what changes a model."""
    thread = ACTIVE.thread

    def leaves(self: Any, *args: Any, **named: Any) -> Any:
        if not thread.inside:
            for record in records_with(self):
                record.leave("the program may change it unseen")
        return own(self, *args, **named)

    return leaves


def _first(model: Any) -> ModelRecord:
    """Return a record for a model that was not met before."""
    try:
        return add(model, _why_not(model))
    except Exception:  # noqa: BLE001 - of a class that is not as libraries' classes are
        return _LEFT


def _why_not(model: Any) -> str:
    if not is_known(model):
        return "it is of a subclass, which may do anything"
    if "steps" in vars(model):
        steps = model.steps
        if not steps or len(steps[-1]) != 2 or not is_known(steps[-1][1]):
            return "its last step is not a known forest"
    return "" if COMPILER.is_usable else "the process was forked while models compiled"


def _answer(
    record: ModelRecord, model: Any, method: str, own: Own, X: Any, settings: Settings
) -> Any:
    rows = len(X) if type(X) in _SIZED or _is_sized(type(X)) else 0
    agreed: bool | None = False
    why, state = record.why or "too few calls so far", record.state
    if state == "ready" and rows >= settings.min_rows:
        agreed, why, answer = _by_kernels(record, model, method, X, rows, settings)
        if agreed:
            return answer
    thread = ACTIVE.thread
    # the last step of a pipeline may have kernels for rows that the whole has none for
    thread.inside = (
        state != "ready" or agreed is not False or "steps" not in vars(model)
    )
    start = perf_counter()
    try:
        answer = own(model, X)
    finally:
        thread.inside = False
    seconds = perf_counter() - start
    tally = record.tallies.get(method) or record.tally(method)
    tally.library(rows, seconds, why)
    if rows < settings.min_rows:
        return answer
    if agreed is None:
        _compare(record, model, method, X, answer)
    elif record.state == "watched":
        record.calls += 1
        record.seconds += seconds
        waits = record.seconds < settings.least_seconds and not settings.eager
        if not waits and record.calls >= settings.min_calls:
            _consider(record, model, settings)
    return answer


# ------------------------------------------------------------ kernels


def _by_kernels(
    record: ModelRecord, model: Any, method: str, X: Any, rows: int, settings: Settings
) -> tuple[bool | None, str, Any]:
    """Return whether kernels may answer, why not, and their answer.

    None in place of whether: the rows are of a new form, to be compared.
    """
    kernels, thread = record.kernels, ACTIVE.thread
    tally = record.tally(method)
    start = perf_counter()
    try:
        if kernels is None or method not in kernels.methods or not kernels.takes(X):
            return False, "kernels do not take such rows", None
        if not settings.eager and not tally.pays(rows, kernels.overhead):
            return False, "the library is faster for such batches", None
        agreed = kernels.agreed(method, X)
        if agreed is False:
            return False, "kernels do not answer such rows as the library does", None
        answer = None
        if agreed:
            thread.inside = True
            try:
                answer = kernels.answer(method, X)
            finally:
                thread.inside = False
            if answer is None:
                return False, "kernels do not take such rows", None
        if not kernels.is_same(model):  # it takes longer than to decline rows
            record.start_again("the model was changed")
            return False, "the model was changed", None
        if agreed is None:
            return None, "the rows were of a new form, and compared", None
    except Exception as error:  # noqa: BLE001 - no failure of ours reaches a program
        _fail(record, error)
        return False, record.why, None
    tally.kernels(rows, perf_counter() - start)
    if settings.share and _is_checked(tally.next_check(), settings.share):
        return _checked(record, model, method, X, answer)
    return True, "", answer


def _is_checked(number: int, share: float) -> bool:
    return number * _GOLDEN % 1 < share


def _checked(
    record: ModelRecord, model: Any, method: str, X: Any, answer: Any
) -> tuple[bool, str, Any]:
    """Let the library answer too; return its answer if the two differ."""
    ACTIVE.thread.inside = True
    try:
        expected, why = record.kernels.expected(model, method, X), ""
        from skforge.acceleration.kernels import unlike

        why = unlike(answer, expected)
    except Exception as error:  # noqa: BLE001 - the library will raise it again
        why = f"the library raises {type(error).__name__}"
    finally:
        ACTIVE.thread.inside = False
    if not why:
        return True, "", answer
    record.tally(method).differed += 1
    _differ(record, method, X, why)
    record.leave(f"an answer differed: {why}")
    return False, record.why, None


@own_arithmetic
def _compare(record: ModelRecord, model: Any, method: str, X: Any, answer: Any) -> None:
    """Compare rows of a new form; the call has the library's answer already."""
    kernels = record.kernels
    COMPILER.at_work.append(None)
    ACTIVE.thread.inside = True
    try:
        if kernels is not None:
            why = kernels.compare(model, method, X, answer)
            if not kernels.is_same(model):  # also what the library writes in calls
                record.leave("the library writes to it in each call")
                return
            kernels.note(method, X, not why)
            if why and kernels.differs:
                record.tally(method).differed += 1
                _differ(record, method, X, why)
    except Exception as error:  # noqa: BLE001 - no failure of ours reaches a program
        _fail(record, error)
    finally:
        ACTIVE.thread.inside = False
        COMPILER.at_work.pop()


def _differ(record: ModelRecord, method: str, X: Any, why: str) -> None:
    log(
        WARNING,
        "accelerate: %s.%s of %s: %s. The library answers. Please report this.",
        *(record.name, method, type(X).__name__, why),
    )


def _fail(record: ModelRecord, error: Exception) -> None:
    record.leave(f"skforge failed: {type(error).__name__}")
    log(
        WARNING,
        "accelerate: the library answers for a %s from now on, as skforge failed: "
        "%s: %s. Please report this.",
        *(record.name, type(error).__name__, error),
    )


# ------------------------------------------------------------ compiling


@own_arithmetic
def _consider(record: ModelRecord, model: Any, settings: Settings) -> None:
    """Compile a model once its library has taken as long as compiling will."""
    if not COMPILER.is_usable:
        record.leave("the process was forked while models compiled")
        return
    if record.state != "watched":
        return  # another thread was faster
    COMPILER.at_work.append(None)
    ACTIVE.thread.inside = True
    record.state = "compiling"
    try:
        needed = seconds_to_compile(model, settings.least_seconds)
        if record.seconds < needed and not settings.eager:
            record.state = "watched"
            record.why = "compiling would take longer than its calls so far"
            return
        _read(record, model, settings)
    except Exception as error:  # noqa: BLE001 - no failure of ours reaches a program
        _refuse(record, error)
    finally:
        ACTIVE.thread.inside = False
        COMPILER.at_work.pop()


def _read(record: ModelRecord, model: Any, settings: Settings) -> None:
    from skforge.acceleration.kernels import Kernels

    kernels = Kernels(model, methods_of(type(model)), settings.schedule)
    record.kernels, record.why = kernels, "its kernels are compiling"

    def job(check: Callable[[], None]) -> None:
        start = perf_counter()
        try:
            kernels.compile(check)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - in a thread that nobody waits for
            if record.kernels is kernels:
                _refuse(record, error)
            return
        kernels.seconds += perf_counter() - start
        if record.kernels is kernels:
            record.state, record.why = "ready", ""
            told = record.name, kernels.seconds
            log(INFO, "accelerate: a %s is compiled, in %.2f s", *told)

    if settings.eager:
        job(COMPILER.check)
    else:
        COMPILER.start(job)


def _refuse(record: ModelRecord, error: Exception) -> None:
    """Leave a model to its library; skforge's own errors say why it is not compiled."""
    from skforge.acceleration.watching import UnwatchedError
    from skforge.exceptions import SkforgeError

    if isinstance(error, (SkforgeError, UnwatchedError)):
        record.leave(f"not compiled: {error}")
        log(INFO, "accelerate: a %s is not compiled: %s", record.name, error)
    else:
        _fail(record, error)


def methods_of(kind: type) -> dict[str, Own]:
    """Return the library's own methods of a class that are wrapped."""
    methods: dict[str, Own] = {}
    for base in reversed(kind.__mro__):
        for (owner, name), own in [*OWN.items()]:
            if owner is base:
                methods[name] = own
    return methods


def after_fork_in_child() -> None:
    COMPILER.after_fork_in_child()
    for record in [*RECORDS.values()]:
        if not COMPILER.is_usable:
            record.leave("the process was forked while models compiled")
        elif record.state == "compiling":
            record.start_again("the process was forked")
