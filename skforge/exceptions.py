"""Every exception skforge raises on purpose; each says what, where and what to do."""

from __future__ import annotations

import sys
import warnings


class SkforgeError(Exception):
    """Base class of every error skforge raises on purpose."""


class InvalidModelError(SkforgeError, ValueError):
    """The model file or object is damaged, malicious or not a model at all."""


class ModelNotFoundError(InvalidModelError, FileNotFoundError):
    """There is no file at the path that was given for a model."""


class UnsupportedModelError(SkforgeError, ValueError):
    """The model uses a feature that cannot be reproduced exactly; names it."""


class InvalidInputError(SkforgeError, ValueError):
    """Rows or arguments that cannot be taken: wrong shape, dtype or value."""


class TargetError(SkforgeError, RuntimeError):
    """A target is unknown, unavailable here, or cannot run this schedule."""


class VerificationError(SkforgeError, AssertionError):
    """Compiled predictions differ from the source model's on the sample rows."""


class SourceNeededError(SkforgeError, ValueError, AttributeError):
    """Only the source model could answer, and it was not kept.

    Raised by models loaded from a ``.skforge`` file or made by ``drop_estimator``.
    """


class TuningError(SkforgeError, RuntimeError):
    """A search that cannot begin: nothing to try, or a default that does not run."""


class TuningWarning(UserWarning):
    """A search ended early or could not measure; what it has so far is used."""


class InconsistentVersionWarning(UserWarning):
    """What is loaded was saved by another release of skforge."""


class CompilerError(SkforgeError, RuntimeError):
    """An internal error of the compiler: a pass produced IR its verifier refuses."""


class ScheduleError(SkforgeError, ValueError):
    """A schedule that is not legal, with the loop nest drawn where it went wrong.

    Parameters
    ----------
    why : str
        One plain sentence: what is wrong and what to do instead.
    nest : str, default=""
        The loop nest as drawn text, one loop a line; may be empty.
    at : int or None, default=None
        Line of ``nest`` that the error is about.
    """

    def __init__(self, why: str, nest: str = "", at: int | None = None) -> None:
        self.why = why
        self.nest = nest
        self.at = at
        super().__init__(why)

    def __str__(self) -> str:
        """Return the sentence followed by the marked loop nest."""
        if not self.nest:
            return self.why
        lines = self.nest.splitlines()
        if self.at is not None:
            lines[self.at] += "        <-- here"
        return "\n".join([self.why, *("  " + line for line in lines)])

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild through the constructor so that workers can send it back."""
        return type(self), (self.why, self.nest, self.at)


def shortened(text: str, most: int = 1000) -> str:
    """Return a message without its middle if what it quotes of a file is too long."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} [...] {text[-most // 4 :]}"


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that called, however deep in skforge this is.

    Parameters
    ----------
    text : str
        What the warning says.
    category : type, default=UserWarning
        Its class.
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in ("skforge", "sklearn", "joblib"):  # these wrap `fit`
            break
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
