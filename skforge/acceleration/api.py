"""``accelerate``, ``restore`` and ``accelerated``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from skforge import config
from skforge.acceleration import calls, patching, records
from skforge.acceleration.compiling import COMPILER
from skforge.acceleration.libraries import LIBRARIES
from skforge.acceleration.settings import ACTIVE, Settings
from skforge.exceptions import InvalidInputError
from skforge.runtime.log import INFO, log


def accelerate(*libraries: str, min_rows: int = 1, min_calls: int = 3) -> None:
    """Let kernels answer for fitted models of libraries, in code that stays as it is.

    Methods of the libraries' classes are wrapped; models are untouched. A model is
    compiled, in a thread of its own, once its library has spent as long on its calls as
    compiling will take. Kernels answer rows of a form only after their answers were
    compared with the library's; the library answers everything else.

    Parameters
    ----------
    *libraries : {"sklearn", "xgboost", "lightgbm", "catboost"}
        Which libraries; all of them if none is named. Those that are not imported yet
        are wrapped as soon as they are.
    min_rows : int, default=1
        Calls with fewer rows are left to the library.
    min_calls : int, default=3
        A model is compiled after so many calls at the earliest.

    See Also
    --------
    skforge.restore : Puts the libraries' own methods back.
    skforge.accelerated : The same for a ``with`` block.

    Examples
    --------
    >>> import skforge
    >>> skforge.accelerate("sklearn")
    >>> skforge.restore()
    """
    start(libraries, Settings(_at_least("min_rows", min_rows, 0), _calls(min_calls)))


def _at_least(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInputError(
            f"{name} must be a whole number from {least} on. Got {value!r} instead."
        )
    return value


def _calls(value: Any) -> int:
    return _at_least("min_calls", value, 1)


def start(libraries: tuple[str, ...], settings: Settings) -> None:
    """Wrap the methods, unless ``SKFORGE_OFF`` is set."""
    for name in libraries:
        if name not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise InvalidInputError(
                f"{name!r} is no library that skforge accelerates; name some of "
                f"{known}, or none for all."
            )
    if config.source_answers():
        log(INFO, "accelerate: nothing, as SKFORGE_OFF is set")
        return
    told = {**vars(settings), "share": config.share_compared()}
    if settings.eager:
        told["least_seconds"] = 0.0
    ACTIVE.settings = Settings(**told)
    patching.patch(libraries or tuple(LIBRARIES))


def restore() -> None:
    """Put the libraries' own methods back, and forget what was compiled.

    :func:`skforge.acceleration_report` still tells what was answered.
    """
    ACTIVE.settings = None
    patching.unpatch()
    records.forget_all()


@contextmanager
def accelerated(
    *libraries: str, min_rows: int = 1, min_calls: int = 3
) -> Iterator[None]:
    """Accelerate libraries inside a ``with`` block.

    Parameters
    ----------
    *libraries : {"sklearn", "xgboost", "lightgbm", "catboost"}
        As of :func:`skforge.accelerate`.
    min_rows, min_calls : int
        As of :func:`skforge.accelerate`.

    Examples
    --------
    >>> import skforge
    >>> with skforge.accelerated("sklearn"):
    ...     pass
    """
    before = ACTIVE.settings
    accelerate(*libraries, min_rows=min_rows, min_calls=min_calls)
    try:
        yield
    finally:
        if before is None:
            restore()
        else:
            ACTIVE.settings = before


def wait() -> None:
    """Wait for models that are compiling."""
    COMPILER.wait()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=calls.after_fork_in_child)
