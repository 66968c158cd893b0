"""Writes files of older formats anew, and compares the new with the old."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skforge._container import Container, Content, container_bytes, replacing
from skforge._typing import Arrays, BinaryFile
from skforge._version import __version__
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    ScheduleError,
    UnsupportedModelError,
    VerificationError,
)
from skforge.forest.arrays import Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_raw
from skforge.frontends.content import CONVERTED, HEAD, check_file
from skforge.modules.compiled import CompiledModule, compile_forest
from skforge.persistence.artifact import compared_contents, from_bytes, write
from skforge.persistence.loading import read
from skforge.persistence.older_formats import in_present_format
from skforge.prediction.given_rows import GivenRows
from skforge.prediction.kernel_checks import ADVICE, Sample, compare_now
from skforge.prediction.verification import verify
from skforge.runtime.records import entry

#: Random rows around the thresholds, on which the new file is compared with the old.
ROWS = 256


def convert(
    old: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile,
    new: str | os.PathLike[str] | BinaryFile,
) -> None:
    """Write a file of an older release anew, in the format of this release.

    A binary file of XGBoost up to 3.0, which XGBoost has not read since 3.1, becomes
    the JSON that today's XGBoost loads. So does the model in a pickle of a ``Booster``
    or wrapper of XGBoost up to 1.2.

    Of ``.skforge`` files, trees, schedules, parameters and labels are kept. Before a
    byte is written, the kernels of the new file are compiled and compared, bit by bit,
    with a plain walk over the trees of the old one, on random rows around their
    thresholds. The model that the file was made from is not asked: ``skforge verify NEW
    --model MODEL --data ROWS`` compares with it. The record of a search,
    ``tuning_result_``, is left out if its own format has changed.

    Parameters
    ----------
    old : path, bytes or binary file
        What :func:`skforge.save` or ``TreeExplainer.save`` of this or an older release
        wrote, or XGBoost's ``save_model``. It is read as :func:`skforge.load` and
        :func:`skforge.load_forest` read it: nothing in it is executed, and all of it
        is checked.
    new : path or binary file
        Where to write. It may be the same path. Of XGBoost's files, it ends in
        ``.json``, since XGBoost tells formats by names.

    Raises
    ------
    InvalidInputError
        If ``old`` or ``new`` is none of these.
    InvalidModelError
        If the old file cannot be read, is damaged, or is of another kind.
    UnsupportedModelError
        If a later release wrote it, or if it does not hold enough for this release:
        pipelines of 0.1.0. The text says what to do.
    VerificationError
        If the new file would answer otherwise. Nothing is written then.

    See Also
    --------
    skforge.load : Reads the new file.

    Examples
    --------
    >>> import tempfile, skforge
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> fast = skforge.CompiledForest(tree).fit([[0.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     skforge.save(fast, f"{folder}/old.skforge")
    ...     skforge.convert(f"{folder}/old.skforge", f"{folder}/new.skforge")
    ...     skforge.load(f"{folder}/new.skforge").predict([[1.0]])
    array([4.])
    """
    found = read(old, rewritten, CONVERTED)
    if isinstance(found, bytes):
        write_json(found, new)
    else:
        write(found.contents, new)


class Converted(NamedTuple):
    """What to write, and the release and the format that a file had."""

    contents: tuple[dict[str, Any], Arrays]
    release: str
    format: int


def rewritten(content: Content, name: str) -> Converted | bytes:
    """Return what is to be written: of XGBoost's old files, the text of the new one."""
    if not CONVERTED.match(content[:HEAD].tobytes()):
        return converted(content, name)
    from skforge.frontends.xgboost.as_json import as_json

    try:
        return as_json(content[: len(content)].tobytes(), name)
    except (InvalidModelError, UnsupportedModelError) as error:
        raise type(error)(f"{name}: {error}") from error


def write_json(text: bytes, new: str | os.PathLike[str] | BinaryFile) -> None:
    if not isinstance(new, (str, os.PathLike)):
        check_file(new, "write", "a path or ")
        new.write(text)
        return
    path = Path(os.path.realpath(new))
    if path.suffix.lower() != ".json":
        raise InvalidInputError(
            f"{os.fspath(new)} does not end in .json, and XGBoost tells formats by "
            "the names of files."
        )
    with replacing(path) as file:
        file.write(text)


def converted(content: Content, name: str) -> Converted:
    """Return a file's contents for this release, compared; errors use ``name``."""
    container = Container(content, name, oldest=1)
    release = entry(container.manifest, "skforge_version", str)
    manifest, arrays = in_present_format(container.manifest, container.read(), name)
    manifest = {**manifest, "skforge_version": __version__}
    if manifest.get("kind") == "explainer" and "model" in arrays:
        inside = converted(arrays["model"], name).contents
        arrays["model"] = np.frombuffer(container_bytes(*inside), np.uint8)
        contents = manifest, arrays
    else:
        old = from_bytes(container_bytes(manifest, arrays), name)
        contents = compared_contents(old)
        try:
            _compare(old, from_bytes(container_bytes(*contents), name), name)
        except (MemoryError, ScheduleError) as error:
            raise UnsupportedModelError(
                f"{name} cannot be converted: {error}"
            ) from error
    return Converted(contents, release, container.manifest["format_version"])


def _compare(old: Any, new: Any, name: str) -> None:
    """Raise unless kernels of the new model walk the old one's trees."""
    forests = [module.forest for module in _modules(old)]
    for forest, module in zip(forests, _modules(new), strict=True):
        if module.forest.content_hash() != forest.content_hash():
            raise VerificationError(
                f"{name} cannot be converted: the new file would hold other trees. "
                f"{ADVICE}"
            )
        sample = _sample(forest)
        for part in module.parts:
            part.compile_all()
            compare_now(part, partial(Sample, *sample))
    if not isinstance(new, (Forest, CompiledModule)):
        predictor = new._compiled()
        width = predictor.source.forest.n_columns
        rows = np.empty((0, width), predictor.forest.input_dtype)
        missing = predictor.source.facts.declines != "not_finite"
        verify(predictor, GivenRows(rows), missing)


def _modules(model: Any) -> list[Any]:
    if isinstance(model, Forest):
        return [compile_forest(model)]
    if isinstance(model, CompiledModule):
        return [model]
    return list(model._compiled().engine.modules)


def _sample(forest: Forest) -> Sample:
    missing = 0.05 if (forest.missing != Missing.NEVER).any() else 0.0
    rows = draw_rows(forest, ROWS, 0, missing)
    names = [f"random row {i} around the trees' thresholds" for i in range(ROWS)]
    raw = reference_raw(forest, rows)
    return Sample(rows, names, raw[:, 0] if forest.n_outputs == 1 else raw)
