"""Recognises files by their first bytes, as users name files freely."""

from __future__ import annotations

import os
import re
from pathlib import Path

from skforge.exceptions import InvalidModelError, UnsupportedModelError

_HEAD = 4096  # bytes that are read

#: Patterns of a file's start, and the frontend that reads the file.
_STARTS: tuple[tuple[str, str], ...] = (
    (r"tree\r?\n", "lightgbm"),
    (r"\{\s*\"name\"\s*:\s*\"tree\"", "lightgbm"),  # Booster.dump_model
    (r"\{[ \t\r\n\"}]", "xgboost"),
    (r"\{[iUIlL$#]", "xgboost"),  # UBJSON
    (r"PK\x03\x04", "skforge"),
    # the format's version, then a string or number field of a ModelProto
    (r"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]", "onnx"),
)

#: Frontends whose files are recognised by content.
CONTENTS = frozenset(name for _, name in _STARTS)

#: Patterns of files that no frontend reads: what they are, and what to do instead.
_OTHERS: tuple[tuple[str, str], ...] = (
    (
        r"\[\s*(\{\s*\"nodeid\"|\"?booster)|booster\[0\]",
        "holds a dump of XGBoost's trees, which XGBoost itself cannot read; save the "
        "model with Booster.save_model",
    ),
    (
        r"binf|bs64|(?s:.{0,2000})(\x06|\x08|\x04)\0{7}(gbtree|gblinear|dart)",
        "is in XGBoost's old binary format; load it with the XGBoost that wrote it "
        "and save it as .json or .ubj",
    ),
    (
        r"\x80[\x02-\x05]|ZF\d|\x1f\x8b|x[\x01\x5e\x9c\xda]|BZh|\xfd7zXZ",
        "is pickled or compressed, as by joblib.dump, and skforge does not open it, "
        "because a pickle can run any code; load it yourself and pass the model",
    ),
)


def frontend_name(path: Path) -> str | None:
    """Return the name of a file's frontend; None if the content does not tell.

    Refuses folders, empty files, and files of a known kind that is not supported.
    """
    if path.is_dir():
        raise InvalidModelError(
            f"{path} is a folder; give the path of a model file in it."
        )
    with path.open("rb") as file:
        head = file.read(_HEAD).decode("latin-1")
    if not head:
        raise InvalidModelError(f"{path} is empty; save the model again.")
    head = head.lstrip(" \t\r\n") or head  # for texts; other formats start otherwise
    for start, what in _OTHERS:
        if re.match(start, head):
            raise UnsupportedModelError(f"{path.name} {what}.")
    return next((name for start, name in _STARTS if re.match(start, head)), None)


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Tell whether ``skforge.save`` wrote a file; its reader reports any damage."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except (OSError, ValueError):
        return False
