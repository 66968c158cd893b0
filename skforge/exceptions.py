"""Exceptions and warnings; each message says what is wrong and what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable


class SkforgeError(Exception):
    """Base class of all errors that skforge raises on purpose."""


class InvalidModelError(SkforgeError, ValueError):
    """The model file or object is damaged, malicious or not a model."""


class ModelNotFoundError(InvalidModelError, FileNotFoundError):
    """No file exists at a model's path."""


class UnsupportedModelError(SkforgeError, ValueError):
    """The model uses a feature that cannot be reproduced exactly; the text names it."""


class InvalidInputError(SkforgeError, ValueError):
    """Rows or arguments have the wrong shape, dtype or value."""


class TargetError(SkforgeError, RuntimeError):
    """A target is unknown, unavailable here, or cannot run this schedule."""


class VerificationError(SkforgeError, AssertionError):
    """Compiled predictions differ from the source model's on the sample rows."""


class SourceNeededError(SkforgeError, ValueError, AttributeError):
    """The call needs the source model, which was not kept.

    Raised by models loaded from a ``.skforge`` file or made by ``drop_estimator``.
    """


class TuningError(SkforgeError, RuntimeError):
    """The search cannot start: the space is empty, or the default schedule fails."""


class TuningWarning(UserWarning):
    """A search ended early or could not measure; the results so far are used."""


class VerificationWarning(UserWarning):
    """A kernel compiled after ``fit`` is wrong, so another one is used in its place."""


class PerformanceWarning(UserWarning):
    """The model itself answers rows like those of ``fit``; the text names the mend."""


class InputWarning(UserWarning):
    """A part of the rows is not used; the text names it."""


class InconsistentVersionWarning(UserWarning):
    """The file or pickle was saved by another version of skforge."""


class CompilerError(SkforgeError, RuntimeError):
    """Internal compiler error: the verifier rejected the IR that a pass produced."""


class ScheduleError(SkforgeError, ValueError):
    """The schedule is not legal; the text draws the loop nest and marks the loop.

    Parameters
    ----------
    why : str
        One sentence: what is wrong and what to do instead.
    nest : str, default=""
        The drawn loop nest, one loop per line; may be empty.
    at : int or None, default=None
        Line of ``nest`` that the error is about.
    """

    def __init__(self, why: str, nest: str = "", at: int | None = None) -> None:
        self.why = why
        self.nest = nest
        self.at = at
        super().__init__(why)

    def __str__(self) -> str:
        """Return the sentence, followed by the marked loop nest."""
        if not self.nest:
            return self.why
        lines = self.nest.splitlines()
        if self.at is not None:
            lines[self.at] += "        <-- here"
        return "\n".join([self.why, *("  " + line for line in lines)])

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild through the constructor, so that workers can send it back."""
        return type(self), (self.why, self.nest, self.at)


#: The names of all errors and warnings.
__all__ = sorted(
    name
    for name, kind in vars().items()
    if isinstance(kind, type) and kind.__module__ == __name__
)


def with_article(noun: str) -> str:
    """Return a noun, such as the name of a class, after "a" or "an".

    >>> [with_article(noun) for noun in ("XGBClassifier", "int", "OneVsRestClassifier")]
    ['an XGBClassifier', 'an int', 'a OneVsRestClassifier']
    """
    letters = "AEFHILMNORSX" if noun[:2].isupper() else "AEIOaeio"  # spelt, or spoken
    vowel = noun.startswith(tuple(letters)) and not noun.lower().startswith("one")
    return f"{'an' if vowel else 'a'} {noun}"


def plural(n: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{n:,} {noun}{'s' if n != 1 else ''}"


def shortened(text: str, most: int = 1000) -> str:
    """Shorten a message by cutting out its middle."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} [...] {text[-most // 4 :]}"


def check_choice(
    name: str,
    value: object,
    known: Iterable[str],
    error: type[SkforgeError] = InvalidInputError,
) -> None:
    """Raise an error unless an argument is one of the known words."""
    words = [*known]
    if value not in words:
        raise error(f"{name} must be one of {', '.join(words)}. Got {value!r} instead.")


#: Packages whose frames are between the user's call and a warning.
_WRAPPERS = ("skforge.", "sklearn.", "joblib.")


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the location of the user's call into skforge."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        if not str(frame.f_globals.get("__name__")).startswith(_WRAPPERS):
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def duration(seconds: float | None) -> str:
    """Return a time with three digits and its unit; a dash for None.

    >>> duration(1.234e-7), duration(0.00123456), duration(2.0), duration(None)
    ('123 ns', '1.23 ms', '2.00 s', '–')
    """
    if seconds is None:
        return "–"
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{three_digits(seconds / scale)} {unit}"
    return f"{three_digits(seconds)} s"


def three_digits(value: float) -> str:
    """Return a positive number with three digits, or all before the point."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
