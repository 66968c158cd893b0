"""What a file is, by its first bytes: names of files end in whatever users like."""

from __future__ import annotations

import os
import re
from pathlib import Path

from skforge.exceptions import InvalidModelError, UnsupportedModelError

_HEAD = 4096  # bytes that are looked at

#: The start of a file, and the frontend that reads it.
_STARTS: tuple[tuple[str, str], ...] = (
    (r"tree\r?\n", "lightgbm"),
    (r"\{[ \t\r\n\"}]", "xgboost"),
    (r"\{[iUIlL$#]", "xgboost"),  # UBJSON
    (r"PK\x03\x04", "skforge"),
    # the version of the format, then strings or numbers that a ModelProto may have
    (r"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]", "onnx"),
)

#: The frontends whose files are known by their content.
CONTENTS = frozenset(name for _, name in _STARTS)

#: The start of what no frontend reads: what it is, and what to do instead.
_OTHERS: tuple[tuple[str, str], ...] = (
    (
        r"\{\s*\"name\"\s*:\s*\"tree\"",
        "holds JSON of LightGBM's Booster.dump_model, which LightGBM itself cannot "
        "read; save the model with Booster.save_model",
    ),
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
        "is pickled or compressed, as by joblib.dump, and is not opened, because that "
        "could run any code; load it yourself and give the model",
    ),
)


def frontend_name(path: Path) -> str | None:
    """Return the name of the frontend for a file; None where the content says none.

    Raises
    ------
    InvalidModelError
        If the path is a folder, or the file is empty.
    UnsupportedModelError
        If the file is of a kind that is known and not read.
    """
    if path.is_dir():
        raise InvalidModelError(
            f"{path} is a folder; give the path of a saved model in it."
        )
    with path.open("rb") as file:
        head = file.read(_HEAD).decode("latin-1")
    if not head:
        raise InvalidModelError(f"{path} is empty; save the model again.")
    head = head.lstrip(" \t\r\n") or head  # of texts; nothing else starts with these
    for start, what in _OTHERS:
        if re.match(start, head):
            raise UnsupportedModelError(f"{path.name} {what}.")
    return next((name for start, name in _STARTS if re.match(start, head)), None)


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Tell whether that is a file of ``skforge.save``; any fault is for its reader."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except (OSError, ValueError):
        return False
