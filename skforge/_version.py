"""The version, the format of files and the name to install by, for every module."""

from __future__ import annotations

from skforge.exceptions import (
    InconsistentVersionWarning,
    UnsupportedModelError,
    shortened,
    warn,
)

__version__ = "0.2.0.dev0"

#: The format of ``.skforge`` files and of pickles. It rises with every change of what
#: they hold, as a release reads no other format; ``skforge.persistence.older_formats``
#: then needs a step from the last one.
FORMAT = 2

#: What pip installs. The import is ``skforge``; that name belongs to another project
#: on the package index.
DISTRIBUTION = "skforge-compiler"


def check_format(
    written: int, release: object, name: str, older: str = "Save the model again"
) -> None:
    """Raise for another format than this one; ``older`` says what to do with older."""
    if written != FORMAT:
        wrote = f"skforge {shortened(str(release), 40)} wrote it in format {written}"
        advice = "Update skforge" if written > FORMAT else older
        raise UnsupportedModelError(
            f"{name} cannot be loaded: {wrote}, and skforge {__version__} reads only "
            f"format {FORMAT}. {advice}."
        )


def check_release(release: str, what: str, again: str) -> None:
    """Warn if another release wrote a file or pickle of the format that is read."""
    if release != __version__:
        warn(
            f"This {what} was saved by skforge {release} and is loaded by "
            f"{__version__}; identical predictions are promised only for the same "
            f"version. {again} it again.",
            InconsistentVersionWarning,
        )
