"""``skforge.load``: a file's model, whole or as far as it is needed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skforge import config
from skforge._container import Container, Content, content_of, identity
from skforge._typing import BinaryFile
from skforge.exceptions import InvalidModelError
from skforge.persistence.ready import ready

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

T = TypeVar("T")


def load(
    path: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile,
) -> CompiledForest:
    """Load the compiled model that a ``.skforge`` file holds.

    Parameters
    ----------
    path : path, bytes or binary file
        A ``.skforge`` file: its path, its bytes, or the file open for reading, which
        is read from where it is to its end. Nothing in it is executed, and all of it
        is checked.

    Returns
    -------
    CompiledForest, CompiledModule or Forest
        The saved object, to type checkers always the first of these; kernels compile
        on the first call, for this CPU. A CompiledForest has no ``estimator_``: calls
        that need it raise ``SourceNeededError``.

    Raises
    ------
    InvalidInputError
        If ``path`` is none of these.
    InvalidModelError
        If the file cannot be read, is damaged, or was not written by :func:`save`.
    UnsupportedModelError
        If another release wrote it in another format, or another library did.

    See Also
    --------
    skforge.compile_forest : Compiles a model or the file of another library.
    skforge.load_forest : Reads the trees of these, without compiling them.
    skforge.convert : Writes a file of an older format anew.
    """
    return read(path, _model)


def read(
    path: Any,
    then: Callable[[Content, str], T],
    also: re.Pattern[bytes] | None = None,
) -> T:
    """Call ``then`` with the content of a path, bytes or file, and its name.

    ``also`` is how other files begin that ``then`` takes.
    """
    if isinstance(path, (str, os.PathLike)):
        name = os.fspath(path)
        try:
            return then(content_of(path), name)
        except InvalidModelError as error:
            from pathlib import Path
            from zipfile import is_zipfile

            file = Path(os.fsdecode(path))
            if file.suffix == ".skforge" or not file.is_file() or is_zipfile(file):
                raise
            with file.open("rb") as opened:
                head = opened.read(4096)
            if also is not None and also.match(head):
                raise
            raise _other_kind(head, name, file.suffix) from error
    content: Any = path
    if not isinstance(path, bytes):
        from skforge.frontends.content import check_file, read_content

        if not isinstance(path, (bytearray, memoryview)):
            check_file(path, "read", "the path of a .skforge file, its bytes, or ")
        content = read_content(path)
    name = f"This {type(path).__name__} object"
    if not content:
        raise InvalidModelError(f"{name} is empty; it holds no model.")
    other = type(content) is str or content[:2] != b"PK"
    if other and (also is None or type(content) is str or not also.match(content)):
        raise _other_kind(content, name)
    return then(np.frombuffer(content, np.uint8), name)


def _model(content: Content, name: str) -> CompiledForest:
    digest, known = identity(content), None
    if digest is None:
        known = Container(content, name)
        known.check()
        digest = known.digest

    def whole() -> CompiledForest:
        from skforge.persistence.artifact import loaded

        return loaded(known or Container(content, name), name)

    shadowed = config.source_answers() or config.share_compared()
    model: Any = None if shadowed else ready(digest, whole)
    return whole() if model is None else model


def _other_kind(head: bytes | str, name: str, suffix: str = "") -> InvalidModelError:
    from skforge.frontends.content import LIBRARIES, frontend_name

    head = head.encode() if isinstance(head, str) else head
    if head[:1] == b"\x80" or suffix in (".pkl", ".pickle", ".joblib"):
        return InvalidModelError(
            f"{name} is a pickle, not a .skforge file; use joblib.load(path) if you "
            "trust its author."
        )
    library = LIBRARIES.get(frontend_name(head, name) or "")
    what = f"a model of {library}, not" if library else "not"
    return InvalidModelError(
        f"{name} is {what} a .skforge file, which skforge.save writes. For a model of "
        "another library, use compile_forest(path) or CompiledForest(path).fit(X)."
    )
