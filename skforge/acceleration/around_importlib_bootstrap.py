"""What takes the place of libraries' methods.

Warnings and loggers that name their caller's line skip frames of files that have
"importlib" and "_bootstrap" in their names. So they name the line of the program, as
without us; therefore only functions of this file call the libraries' methods.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from skforge.acceleration import calls
from skforge.acceleration.arguments import Arguments
from skforge.acceleration.calls import Own
from skforge.acceleration.compiling import COMPILER
from skforge.acceleration.records import RECORDS, ModelRecord, changed, records_with
from skforge.acceleration.settings import ACTIVE, Settings
from skforge.acceleration.tally import LISTENERS

#: Stands for what a call does not give.
_NONE: Any = object()


def answering(own: Own, method: str) -> Own:
    """Return what takes the place of a library's method that answers rows.

    What comes before and after the library's answer is written out, as Python's calls
    take a tenth of a microsecond each, and several times that in a program's own loop.
    """
    active, thread, records = ACTIVE, ACTIVE.thread, RECORDS
    array, pandas, listeners = np.ndarray, calls.PANDAS, LISTENERS
    few, faster, arguments = calls.FEW, calls.FASTER, Arguments(own)

    def asked(self: Any = _NONE, X: Any = _NONE, /, *args: Any, **named: Any) -> Any:
        busy = thread.busy
        if args or named or X is _NONE:
            args = tuple(one for one in (self, X, *args) if one is not _NONE)
            usual = None if busy[0] else arguments.usual(args, named)
            if usual is None:
                return _with_others(own, method, args, named)
            self, X, further, threads = usual
            ask: Own = partial(own, **further)
            calls.asks_for(self, threads)
        elif busy[0]:
            return own(self, X)
        else:
            ask = own
        settings = active.settings
        if settings is None:
            return ask(self, X)
        tally: Any = None
        record = records.get(id(self))
        if record is None:
            record = calls.first(self)
        else:
            try:  # faster than get(), and once slower
                tally = record.met[method]
            except KeyError:
                tally = None
        try:
            if (kind := type(X)) is array:
                rows = len(X)
            elif kind is pandas.frame:  # len() takes four times as long
                index: Any = X._mgr.axes[1]
                counts = type(index) is pandas.numbers
                rows = len(index._range if counts else index._data)
            else:
                rows = calls.rows_of(X)
        except Exception:  # noqa: BLE001 - another index, or an array of no dimensions
            rows = calls.rows_of(X)
        why, whole, size = record.why, True, rows.bit_length()
        if (state := record.state) == "left":
            (tally or record.tally(method)).untimed(rows, why)
            return ask(self, X)
        if state == "ready":
            if rows < settings.min_rows:
                why = few
            elif tally is not None and size in tally.slower:
                why = faster
            else:
                return _by_either(record, self, ask, method, X, rows, settings)
            whole = record.is_whole
        busy[0] = whole
        start = perf_counter()
        try:
            answer = ask(self, X)
        finally:
            busy[0] = False
        seconds = perf_counter() - start
        try:
            sums = None if tally is None else tally.by_library[size]
        except KeyError:
            sums = None
        if sums is None or listeners:
            count = record.count(method, rows, seconds, why)
        else:
            if tally.why is not why:
                tally.turn(why)
            sums[0] = count = sums[0] + 1
            sums[1] += rows
            sums[2] += seconds
        if state == "ready":
            if count & (count - 1) == 0:
                calls.weigh_again(record, method, rows, settings)
        elif record.state == "compiling":
            COMPILER.give_way(seconds)
        elif rows >= settings.min_rows:
            record.calls += 1
            record.seconds = spent = record.seconds + seconds
            if spent >= record.needed:
                calls.consider(record, self, X, settings)
        return answer

    return asked


def _by_either(
    record: ModelRecord,
    model: Any,
    ask: Own,
    method: str,
    X: Any,
    rows: int,
    settings: Settings,
) -> Any:
    """Let kernels answer, or the library if they do not."""
    thread, own = ACTIVE.thread, getattr(ask, "func", ask)
    agreed, why, answer = calls.by_kernels(
        record, model, own, method, X, rows, settings
    )
    if agreed:
        return answer
    # a pipeline's last step may have kernels for rows that the whole has none for
    thread.inside = agreed is not False or "steps" not in vars(model)
    start = perf_counter()
    try:
        answer = ask(model, X)
    finally:
        thread.inside = False
    seconds = perf_counter() - start
    count = record.tally(method).library(rows, seconds, why)
    if agreed is None:
        calls.compare(record, model, method, X, answer)
    elif why is calls.FASTER and count & (count - 1) == 0:
        calls.may_need_more(record, method, rows, settings)
    return answer


def _with_others(
    own: Own, method: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Let the library answer a call with further arguments, and count it."""
    if ACTIVE.thread.inside:
        return own(*args, **named)
    calls.count_other("it has further arguments", method, *args)
    ACTIVE.thread.inside = not (args and "steps" in getattr(args[0], "__dict__", ()))
    try:
        return own(*args, **named)
    finally:
        ACTIVE.thread.inside = False


def declining(own: Own, method: str, why: str) -> Own:
    """Return what takes the place of a method that is counted alone."""
    thread = ACTIVE.thread

    def declined(*args: Any, **named: Any) -> Any:
        if not thread.inside:
            calls.count_other(why, method, *args)
        return own(*args, **named)

    return declined


def changing(own: Own) -> Own:
    """Return what takes the place of a method that trains or changes its object."""
    thread = ACTIVE.thread

    def changes(*args: Any, **named: Any) -> Any:
        model = args[0] if args else named.get("self")
        before, thread.inside = thread.inside, True
        changed(model)
        try:
            return own(*args, **named)
        finally:
            thread.inside = before
            changed(model)

    return changes


def leaving(own: Own) -> Own:
    """Return what takes the place of a method that hands out what changes a model."""
    thread = ACTIVE.thread

    def leaves(*args: Any, **named: Any) -> Any:
        if not thread.inside:
            for record in records_with(args[0] if args else named.get("self")):
                record.leave("the program may change it unseen")
        return own(*args, **named)

    return leaves
