"""Files of older formats: a step for each format makes one of the next.

A step gets the manifest and the arrays of a file, whose digests are right, and returns
those that the next release would have written. It need not check values: what the last
step returns is read as strictly as any file of the present format. Where a release kept
too little of a model, or kept wrong trees, the step raises an ``UnsupportedModelError``
that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from skforge._typing import Arrays
from skforge._version import FORMAT
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.persistence.older_formats import format_1

Contents: TypeAlias = tuple[dict[str, Any], Arrays]

#: By the format that it reads, what makes contents of the next format.
STEPS: dict[int, Callable[[dict[str, Any], Arrays], Contents]] = {1: format_1.to_next}

_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def in_present_format(manifest: dict[str, Any], arrays: Arrays, name: str) -> Contents:
    """Return a file's contents in the present format; errors use ``name``."""
    for written in range(manifest["format_version"], FORMAT):
        try:
            manifest, arrays = STEPS[written](manifest, arrays)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{name} cannot be converted: {error}"
            ) from error
        except _DAMAGE as error:
            raise InvalidModelError(
                f"{name} cannot be converted: its manifest is not one that skforge "
                f"wrote in format {written}."
            ) from error
    return manifest, arrays
