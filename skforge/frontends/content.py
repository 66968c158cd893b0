"""Recognises files, and models in memory, by their first bytes: names are free."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from io import TextIOBase
from typing import Any

from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
)

HEAD = 4096  # bytes that are looked at

#: Patterns of a file's start, and the frontend that reads the file.
_STARTS: tuple[tuple[str, str], ...] = (
    (r"tree\r?\n", "lightgbm"),
    (r"\{\s*\"name\"\s*:\s*\"tree\"", "lightgbm"),  # Booster.dump_model
    (r"CBM1|\{\s*\"(ctr_data|features_info)\"", "catboost"),
    (r"\{[ \t\r\n\"}]", "xgboost"),
    (r"\{[iUIlL$#]", "xgboost"),  # UBJSON
    (r"PK\x03\x04", "skforge"),
    # the format's version, then a string or number field of a ModelProto
    (r"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]", "onnx"),
)

#: Frontends whose files are recognised by content.
CONTENTS = frozenset(name for _, name in _STARTS)

#: What to do with a file of another kind.
SAVE_IT = (
    "save the model with Booster.save_model of XGBoost or LightGBM, save_model of "
    "CatBoost, as ONNX, or with skforge.save."
)

#: Names of the libraries, by ``Forest.source``.
LIBRARIES = {
    "sklearn": "scikit-learn",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "onnx": "ONNX",
}

#: Patterns of files that no frontend reads: what they are, and what to do instead.
_OTHERS: tuple[tuple[str, str], ...] = (
    (
        r"\[\s*(\{\s*\"nodeid\"|\"?booster)|booster\[0\]",
        "holds a dump of XGBoost's trees, which XGBoost itself cannot read; save the "
        "model with Booster.save_model",
    ),
    (
        r"(<\?xml[^>]*>\s*)?(<!--(?s:.*?)-->\s*)*<PMML",
        "is PMML, which skforge does not read; give it the model that was exported",
    ),
    (
        r"\x80[\x02-\x05]|ZF\d|\x1f\x8b|x[\x01\x5e\x9c\xda]|BZh|\xfd7zXZ",
        "is pickled or compressed, as by joblib.dump, and skforge does not open it, "
        "because a pickle can run any code; load it yourself and pass the model",
    ),
)


#: The start of XGBoost's binary files. Those that begin with numbers have, behind 136
#: bytes, the names of the objective and the booster, each with its length.
OLD_XGBOOST = re.compile(
    rb"binf|bs64|CONFIG-offset:|\0\x05_(cls|reg)_"
    rb"|(?s:\0\0..)?(binf)?(?s:.{136})[\x01-\x7f]\0{7}[ -~]{1,127}"
    rb"(\x04\0{7}dart|\x06\0{7}gbtree|\x08\0{7}gblinear)"
)


#: The start of a pickle of XGBoost's classes, which may hold such a file.
XGBOOST_PICKLE = re.compile(
    rb"\x80[\x02-\x05](?s:.{0,20})\x8c?.?xgboost\.(core|sklearn)\W"
)


#: The start of files that ``skforge.convert`` writes as JSON.
CONVERTED = re.compile(OLD_XGBOOST.pattern + b"|" + XGBOOST_PICKLE.pattern)


def frontend_name(head: bytes, name: str) -> str | None:
    """Return a head's frontend, None if it does not tell; refuse unsupported kinds."""
    if CONVERTED.match(head):
        return "xgboost"
    text = head[:HEAD].decode("latin-1")
    text = text.lstrip(" \t\r\n") or text  # for texts; other formats start otherwise
    for start, what in _OTHERS:
        if re.match(start, text):
            raise UnsupportedModelError(f"{name} {what}.")
    return next((kind for start, kind in _STARTS if re.match(start, text)), None)


def read_content(model: Any) -> Any:
    if isinstance(model, (bytearray, memoryview)):
        return bytes(model)
    read = None if hasattr(model, "fit") else getattr(model, "read", None)
    if not callable(read):
        return model
    try:
        data = read()
    except (OSError, ValueError) as error:  # closed, or open for writing only
        raise InvalidModelError(
            f"This {type(model).__name__} cannot be read: {error}."
        ) from error
    if not data or not isinstance(data, (bytes, str)):
        raise InvalidModelError(
            f"This {type(model).__name__} has nothing left to read; call its seek(0) "
            "first, or pass its bytes."
        )
    return data


def content_of(model: object) -> bytes | None:
    if isinstance(model, str) and _IS_TEXT.search(model):
        return model.encode()
    return model if isinstance(model, bytes) else None


#: What the text of a model has, and no path.
_IS_TEXT = re.compile(r"[\r\n]|^\s*\{\s*\"")


def is_path(model: object) -> bool:
    return isinstance(model, os.PathLike) or (
        isinstance(model, str) and not _IS_TEXT.search(model)
    )


def is_saved(model: Any) -> bool:
    head = content_of(model)
    if head is None and is_path(model):
        with suppress(OSError, ValueError), open(model, "rb") as file:
            head = file.read(4)
    return head is not None and head[:4] == b"PK\x03\x04"


def check_file(file: object, method: str, other: str = "") -> None:
    if not hasattr(file, method) or isinstance(file, TextIOBase):
        raise InvalidInputError(
            f"pass {other}a file open in binary mode, such as open(path, "
            f"'{method[0]}b'). Got {type(file).__name__} instead."
        )
