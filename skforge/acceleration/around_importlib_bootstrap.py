"""What takes the place of libraries' methods.

Warnings and loggers that name their caller's line skip frames of files that have
"importlib" and "_bootstrap" in their names. So they name the line of the program, as
without us; therefore only functions of this file call the libraries' methods.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

from skforge.acceleration import calls
from skforge.acceleration.arguments import Arguments
from skforge.acceleration.calls import Own
from skforge.acceleration.records import RECORDS, changed, records_with
from skforge.acceleration.settings import ACTIVE


def answering(own: Own, method: str) -> Own:
    """Return what takes the place of a library's method that answers rows."""
    thread, records, sized = ACTIVE.thread, RECORDS, calls.SIZED
    arguments = Arguments(own)

    def asked(*args: Any, **named: Any) -> Any:
        if thread.inside:
            return own(*args, **named)
        if named or len(args) != 2:
            usual = arguments.usual(args, named)
            if usual is None:
                return _with_others(own, method, args, named)
            self, X, further, threads = usual
            ask: Own = partial(own, **further)
            calls.asks_for(self, threads)
        else:
            (self, X), ask = args, own
        settings = ACTIVE.settings
        if settings is None:
            return ask(self, X)
        record = records.get(id(self)) or calls.first(self)
        try:
            rows = len(X) if type(X) in sized else calls.rows_of(X)
        except TypeError:  # an array without dimensions
            rows = 0
        state, why = record.state, record.why
        agreed: bool | None = False
        if state == "left":
            record.tally(method).untimed(rows, why)
            return ask(self, X)
        if state == "ready":
            agreed, why, answer = calls.by_kernels(
                record, self, own, method, X, rows, settings
            )
            if agreed:
                return answer
        # a pipeline's last step may have kernels for rows that the whole has none for
        thread.inside = (
            state != "ready" or agreed is not False or "steps" not in vars(self)
        )
        start = perf_counter()
        try:
            answer = ask(self, X)
        finally:
            thread.inside = False
        seconds = perf_counter() - start
        count = record.tally(method).library(rows, seconds, why)
        if agreed is None:
            calls.compare(record, self, method, X, answer)
        elif state == "watched" and rows >= settings.min_rows:
            calls.watched(record, self, X, seconds, settings)
        elif why is calls.FASTER and count & (count - 1) == 0:
            calls.may_need_more(record, method, rows, settings)
        return answer

    return asked


def _with_others(
    own: Own, method: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Let the library answer a call with further arguments, and count it."""
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
