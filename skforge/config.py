"""Settings from environment variables, read on each use so that tests can set them."""

from __future__ import annotations

import math
import os
import warnings
from functools import partial

from skforge.exceptions import InvalidInputError

_ON = ("on", "1", "yes", "true", "enabled")
_OFF = ("off", "0", "no", "false", "disabled", "none")


def dump_levels() -> frozenset[str]:
    """Return the levels to print, from ``SKFORGE_DUMP=mir,lir``; "all" means all."""
    names = os.environ.get("SKFORGE_DUMP", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def tuning_seconds(otherwise: float) -> float:
    """Return the default budget of a search (``SKFORGE_TUNING_SECONDS``), in seconds.

    0 disables searches, so that fits are fast and reproducible.
    """
    text, seconds = _number(name := "SKFORGE_TUNING_SECONDS")
    if 0 <= seconds < math.inf:
        return seconds if text else otherwise
    _warn(name, text, "a number of seconds, 0 or more", "ignored")
    return otherwise


def compares_forms() -> bool:
    """Tell whether forms, files and exports are compared before their first answer."""
    return os.environ.get("SKFORGE_CHECK", "").strip().lower() != "off"


def share_compared() -> float:
    """Return the share of calls compared with the live model (``SKFORGE_CHECK=0.01``).

    A value that is neither a number from 0 to 1 nor ``off`` raises
    ``InvalidInputError``: nobody should believe that calls are compared that are not.
    """
    if not compares_forms():
        return 0.0
    text, share = _number("SKFORGE_CHECK")
    if not 0 <= share <= 1:
        raise InvalidInputError(
            f"SKFORGE_CHECK is {text!r:.60}, but it must be a number from 0 to 1, or "
            "off: 1 to compare all calls with the model, 0.01 one in a hundred, 0 "
            "none; off to compare nothing before a first answer, either."
        )
    return share


def _number(name: str) -> tuple[str, float]:
    text = os.environ.get(name, "").strip()
    try:
        return text, float(text or 0)
    except ValueError:
        return text, math.nan


def _switch(name: str, default: bool, otherwise: bool) -> bool:
    text = os.environ.get(name, "").strip()
    word = text.lower()
    if not word or word in _ON:
        return bool(word) or default
    if word not in _OFF:
        _warn(name, text, "on or off", f"taken for {'on' if otherwise else 'off'}")
        return otherwise
    return False


def _warn(name: str, text: str, known: str, taken: str) -> None:
    if (name, text) not in _WARNED:
        _WARNED.add((name, text))
        more = "; SKFORGE_CACHE_DIR moves the cache" if name == "SKFORGE_CACHE" else ""
        warnings.warn(
            f"{name} is {text!r:.60}, which is not {known}; it is {taken}{more}.",
            UserWarning,
            stacklevel=2,
        )


_WARNED: set[tuple[str, str]] = set()

#: Whether the IR is verified after every pass (SKFORGE_VERIFY=1). It costs more than
#: the passes themselves; tests enable it.
verify_every_pass = partial(_switch, "SKFORGE_VERIFY", False, True)
#: Whether live models answer in place of compiled code (SKFORGE_OFF=1).
source_answers = partial(_switch, "SKFORGE_OFF", False, True)
#: Whether ``skforge run`` accelerates this process, as it sets (SKFORGE_ACCELERATE=1).
accelerates = partial(_switch, "SKFORGE_ACCELERATE", False, False)
#: Whether calls with few rows become CUDA graphs (SKFORGE_GRAPHS=0: no).
launch_graphs = partial(_switch, "SKFORGE_GRAPHS", True, True)
#: Whether machine code is cached (SKFORGE_CACHE=off: no). An unknown value disables the
#: cache, as the user probably meant another directory.
cache_switched_on = partial(_switch, "SKFORGE_CACHE", True, False)
