"""What is done with a call: kernels answer it, or the library, which is timed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge.acceleration.compiling import COMPILER, StoppedError
from skforge.acceleration.estimate import seconds_to_compile, simple_is_faster
from skforge.acceleration.libraries import is_known
from skforge.acceleration.records import (
    RECORDS,
    ModelRecord,
    forget,
    saved,
)
from skforge.acceleration.settings import ACTIVE, Settings
from skforge.runtime.log import INFO, WARNING, log

if TYPE_CHECKING:
    from skforge.acceleration.kernels import Kernels

Own = Callable[..., Any]

#: Why kernels do not answer: for batches of such a size, they may get another one.
FEW = "they are fewer rows than min_rows"
FASTER = "the library is faster for such batches"
#: Another kernel is compiled once its rows have taken so many times as long.
_WORTH = 2.0

#: Multiples of it, without their whole parts, spread evenly and have no period.
_GOLDEN = 0.618033988749895

#: Classes whose length is known without work, as those of Dask's frames is not.
_SIZED: set[type] = {list, tuple, np.ndarray}


class _Pandas:
    """Classes of pandas, once there was a frame: it may be imported later."""

    frame: type | None = None
    numbers: type | None = None


PANDAS = _Pandas()
#: Dtypes of arrays that kernels may take.
_FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))


class _Nothing:
    """Stands for a model that cannot be known."""


_NOTHING = _Nothing()
_LEFT = ModelRecord(_NOTHING)
_LEFT.leave("it cannot be watched")

#: Classes of models whose calls are watched whatever the model holds.
_WATCHED: set[type] = set()

#: Held by the thread that reads or compares a model.
_ALONE = threading.Lock()

#: By class and method, the function that is wrapped, which is the library's own.
OWN: dict[tuple[type, str], Own] = {}


def rows_of(X: Any) -> int:
    """Return how many rows there are; 0 if that is not known without work."""
    kind = type(X)
    if kind not in _SIZED:
        if kind.__module__.partition(".")[0] not in ("numpy", "pandas"):
            return 0
        if hasattr(kind, "__len__"):
            _SIZED.add(kind)
        if kind.__name__ == "DataFrame":
            pandas = sys.modules["pandas"]
            PANDAS.frame, PANDAS.numbers = pandas.DataFrame, pandas.RangeIndex
    try:
        return len(X) if kind in _SIZED else 0
    except TypeError:  # an array without dimensions
        return 0


def may_take(X: Any) -> bool:
    """Tell by their class and dtype whether kernels may take rows."""
    if type(X) is np.ndarray:
        return X.dtype in _FLOATS
    pandas = sys.modules.get("pandas")
    return pandas is not None and type(X) is pandas.DataFrame


def count_other(why: str, method: str, *args: Any) -> None:
    """Count a call that the library answers whatever its rows are."""
    if args and ACTIVE.settings is not None:
        record = RECORDS.get(id(args[0])) or first(args[0])
        record.tally(method).untimed(0, why)


def asks_for(model: Any, threads: int | None) -> None:
    """Keep on how many threads a call is to be answered: kernels will use as many."""
    if threads is not None and ACTIVE.settings is not None:
        (RECORDS.get(id(model)) or first(model)).threads = threads


def first(model: Any) -> ModelRecord:
    """Return a record for a model that was not met before."""
    try:
        why = "" if type(model) in _WATCHED else _why_not(model)
        record = RECORDS[id(model)] = ModelRecord(model, forget)
        if why:
            record.leave(why)
        return record
    except Exception:  # noqa: BLE001 - of a class that is not as libraries' classes are
        return _LEFT


def _why_not(model: Any) -> str:
    if not is_known(model):
        return "it is of a subclass, which may do anything"
    if "steps" not in vars(model):
        _WATCHED.add(type(model))  # a class of a library, which stays
        return ""
    steps = model.steps
    if not steps or len(steps[-1]) != 2 or not is_known(steps[-1][1]):
        return "its last step is not a known forest"
    return ""


def consider(record: ModelRecord, model: Any, X: Any, settings: Settings) -> None:
    """Compile a model that kernels might have answered for, if that pays."""
    record.needed = record.needed or settings.least_seconds
    waits = record.seconds < record.needed and not settings.eager
    if not waits and record.calls >= settings.min_calls and may_take(X):
        _consider(record, model, settings)


def may_need_more(
    record: ModelRecord, method: str, rows: int, settings: Settings
) -> None:
    """Compile another kernel if batches of a size have taken longer than that does.

    Until then they are answered by the kernel of other sizes, or by the library.
    """
    kernels, model = record.kernels, record()
    if kernels is None or kernels.is_busy or not COMPILER.is_usable:
        return
    spent = record.tally(method).spent(rows, kernels.overhead)
    if kernels.is_simple and model is not None:
        tallies = [*record.tallies.values()]
        left = sum(tally.left_to_save(kernels.overhead) for tally in tallies)
        takes = seconds_to_compile(model, True, False) + debt()
        if left > _WORTH * takes or settings.eager:
            _compile_more(record, kernels, rows, settings, True)
            return
    pays = spent > _WORTH * kernels.of_kernel or settings.eager
    if pays and kernels.lacks(method, rows):
        _compile_more(record, kernels, rows, settings, False)


def debt() -> float:
    """Return the seconds that compiling took and kernels have not saved yet.

    Further models wait until their library has taken so much longer, so that programs
    whose models are asked for a short time pay for few of them.
    """
    return max(0.0, COMPILER.spent - saved())


def weigh_again(
    record: ModelRecord, method: str, rows: int, settings: Settings
) -> None:
    """Let the next batch of a size be weighed anew; the library was timed since."""
    if rows >= settings.min_rows:
        record.tally(method).slower.discard(rows.bit_length())
        may_need_more(record, method, rows, settings)


# ------------------------------------------------------------ kernels


def by_kernels(
    record: ModelRecord,
    model: Any,
    own: Own,
    method: str,
    X: Any,
    rows: int,
    settings: Settings,
) -> tuple[bool | None, str, Any]:
    """Return whether kernels may answer, why not, and their answer.

    None in place of whether: the rows are of a new form, to be compared.
    """
    kernels, thread = record.kernels, ACTIVE.thread
    tally = record.tally(method)
    # a base's method may be asked of a model whose class has another
    if kernels is None or kernels.methods.get(method) is not own or not may_take(X):
        return False, "kernels do not take such rows", None
    if not settings.eager and not tally.pays(rows, kernels.overhead):
        tally.slower.add(rows.bit_length())
        return False, FASTER, None
    start = perf_counter()
    try:
        agreed = kernels.agreed(method, X)
        if agreed is None and kernels.is_busy:  # it would wait for the compiler
            return False, "its kernels are compiling", None
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
    calls = tally.kernels(rows, perf_counter() - start)
    if calls & (calls - 1) == 0:  # more and more rarely
        may_need_more(record, method, rows, settings)
    if settings.share and _is_checked(tally.next_check(), settings.share):
        return _checked(record, kernels, model, method, X, answer)
    return True, "", answer


def _is_checked(number: int, share: float) -> bool:
    return number * _GOLDEN % 1 < share


def _checked(
    record: ModelRecord, kernels: Any, model: Any, method: str, X: Any, answer: Any
) -> tuple[bool, str, Any]:
    """Let the library answer too; return its answer if the two differ."""
    ACTIVE.thread.inside = True
    try:
        expected, why = kernels.expected(model, method, X), ""
        from skforge.acceleration.kernels import unlike

        why = unlike(answer, expected)
    except Exception as error:  # noqa: BLE001 - the library will raise it again
        why = f"the library raises {type(error).__name__}"
    finally:
        ACTIVE.thread.inside = False
    if not why:
        return True, "", answer
    record.tally(method).differs()
    _differ(record, method, X, why)
    record.leave(f"an answer differed: {why}")
    return False, record.why, None


def _alone(function: Callable[..., None]) -> Callable[..., None]:
    """Let one thread at a time do this; others go on, and their next calls may.

    Warnings are hidden for the whole process meanwhile. If two threads did so, the
    second to end would hide them for ever.
    """

    @wraps(function)
    def alone(*args: Any) -> None:
        COMPILER.at_work.append(None)
        if not _ALONE.acquire(blocking=False):
            COMPILER.at_work.pop()
            return
        ACTIVE.thread.inside = True
        try:
            with np.errstate(all="ignore"):
                function(*args)
        finally:
            ACTIVE.thread.inside = False
            _ALONE.release()
            COMPILER.at_work.pop()

    return alone


@_alone
def compare(record: ModelRecord, model: Any, method: str, X: Any, answer: Any) -> None:
    """Compare rows of a new form; the call has the library's answer already."""
    kernels = record.kernels
    try:
        if kernels is not None:
            why = kernels.compare(model, method, X, answer)
            if not kernels.is_same(model):  # also what the library writes in calls
                record.leave("the library writes to it in each call")
                return
            if not kernels.note(method, X, not why):
                record.leave("its rows are of too many forms")
                return
            if why and kernels.differs:
                record.tally(method).differs()
                _differ(record, method, X, why)
    except Exception as error:  # noqa: BLE001 - no failure of ours reaches a program
        _fail(record, error)


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


def begins_simple(record: ModelRecord, model: Any, settings: Settings) -> bool:
    return settings.schedule == "auto" and simple_is_faster(model, *record.most()[1:])


@_alone
def _consider(record: ModelRecord, model: Any, settings: Settings) -> None:
    """Compile a model once its library has taken as long as compiling will."""
    if not COMPILER.is_usable:
        record.leave("the process was forked while models compiled")
        return
    if record.state != "watched":
        return  # by another thread
    record.state = "compiling"
    try:
        is_simple = begins_simple(record, model, settings)
        takes = seconds_to_compile(model, COMPILER.is_ready, is_simple)
        record.needed = settings.least_seconds + takes + debt()
        if record.seconds < record.needed and not settings.eager:
            record.state = "watched"
            record.why = "compiling would take longer than its calls so far"
            return
        if not settings.eager and not COMPILER.prepares():
            record.state, record.why = "watched", "skforge is being imported"
            COMPILER.give_way(record.seconds / record.calls)
            return
        _read(record, model, settings, is_simple)
    except Exception as error:  # noqa: BLE001 - no failure of ours reaches a program
        _refuse(record, error)


def _read(record: ModelRecord, model: Any, settings: Settings, is_simple: bool) -> None:
    from skforge.acceleration.kernels import Kernels

    start, methods = thread_time(), methods_of(type(model))
    schedule = None if is_simple else settings.schedule
    try:
        kernels = Kernels(model, methods, schedule, record.threads)
    finally:
        COMPILER.spent += thread_time() - start
    record.kernels, record.why = kernels, "its kernels are compiling"
    record.is_whole = "steps" not in vars(model)
    calls, rows, _ = record.most()
    _compile(record, kernels, round(rows / calls), settings.eager)


@_alone
def _compile_more(
    record: ModelRecord, kernels: Kernels, rows: int, settings: Settings, better: bool
) -> None:
    if not kernels.is_busy:
        kernels.is_busy = True
        _compile(
            record, kernels, rows, settings.eager, settings.schedule if better else None
        )


def _compile(
    record: ModelRecord, kernels: Kernels, rows: int, eager: bool, schedule: Any = None
) -> None:
    """Compile the kernel for batches of a size, and entries of the methods met.

    With a schedule, kernels by it take the place of these once they are compiled.
    """
    methods = [*record.tallies]

    def job(check: Callable[[], None]) -> None:
        try:
            compiled = kernels if schedule is None else kernels.by(schedule)
            compiled.compile(rows, methods, check)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - in a thread that nobody waits for
            if record.kernels is kernels:
                _refuse(record, error)
            return
        finally:
            kernels.is_busy = False
        if record.kernels is kernels:
            for tally in [*record.tallies.values()]:
                tally.renew()
            record.kernels, record.state, record.why = compiled, "ready", ""
            told = record.name, compiled.seconds
            log(INFO, "accelerate: a %s is compiled, in %.2f s", *told)

    if eager:
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
