"""What is sent to workers: a model as bytes, named by their checksum."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from skforge.exceptions import InvalidInputError, InvalidModelError

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

KeepEstimator: TypeAlias = bool | Literal["auto"]

__all__ = ["Artifact", "KeepEstimator", "pack"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A fitted ``CompiledForest`` as bytes without machine code; see :func:`pack`.

    Attributes
    ----------
    payload : bytes
        The bytes of a ``.skforge`` file, or a pickle.
    pickled : bool
        Whether it is a pickle, which holds the source model and needs its library.
    checksum : str
        SHA-256 of the payload, hexadecimal. Workers know a model by it.
    """

    payload: bytes
    pickled: bool
    checksum: str

    def __repr__(self) -> str:
        """Return one line: the form, the size, the start of the checksum."""
        form = "pickle" if self.pickled else ".skforge"
        return f"<Artifact: {form}, {len(self.payload):,} bytes, {self.checksum[:12]}>"

    def __dask_tokenize__(self) -> str:
        """Return the name Dask gives it, the same in every process."""
        return self.checksum

    def load(self) -> CompiledForest:
        """Return the model; its kernels compile when they are first needed.

        Raises
        ------
        InvalidModelError
            If the bytes are damaged.
        """
        from skforge.persistence.artifact import from_bytes

        if hashlib.sha256(self.payload).hexdigest() != self.checksum:
            raise InvalidModelError(
                f"The artifact {self.checksum[:12]} was damaged on its way to this "
                "process; send it again."
            )
        made: CompiledForest
        if self.pickled:
            made = pickle.loads(self.payload)
        else:
            made = from_bytes(self.payload, f"The artifact {self.checksum[:12]}")
        return made


def pack(
    model: CompiledForest | Artifact | str | os.PathLike[str],
    *,
    keep_estimator: KeepEstimator = "auto",
) -> Artifact:
    """Return a model as the bytes that are sent to workers.

    Every adapter packs the model it is given; a model packed once can be given to
    many calls.

    Parameters
    ----------
    model : CompiledForest, Artifact or path
        A fitted CompiledForest, a ``.skforge`` file that holds one, or what this
        function returned, which is returned as it is.
    keep_estimator : bool or "auto", default="auto"
        Whether the source model goes along, in a pickle; workers then need its
        library. "auto": only where the model cannot be saved without it, which is true
        of histogram boosting with categories.

    Returns
    -------
    Artifact

    Raises
    ------
    UnsupportedModelError
        If ``keep_estimator=False`` and rows of the model cannot be taken without it.
    InvalidInputError
        If ``model`` is no such object, or the file holds something else.
    sklearn.exceptions.NotFittedError
        If the CompiledForest is not fitted.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skforge import CompiledForest
    >>> from skforge.distributed import pack
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> artifact = pack(CompiledForest(tree).fit([[0.0]]))
    >>> artifact.pickled, artifact.load().predict([[1.0]])
    (False, array([4.]))
    """
    if isinstance(model, Artifact):
        return model
    from skforge.estimators import CompiledForest
    from skforge.persistence.artifact import load

    wrapper: Any = model
    holds = ""
    if isinstance(model, (str, os.PathLike)):
        wrapper = load(model)
        holds = f"{os.fspath(model)}, which holds a "
    if not isinstance(wrapper, CompiledForest):
        raise InvalidInputError(
            "model must be a fitted CompiledForest, or the path of a .skforge file "
            f"that holds one. Got {holds}{type(wrapper).__name__} instead."
        )
    return _packed(wrapper, keep_estimator)


def _packed(wrapper: CompiledForest, keep_estimator: KeepEstimator) -> Artifact:
    from sklearn.utils.validation import check_is_fitted

    from skforge.exceptions import UnsupportedModelError
    from skforge.persistence.artifact import to_bytes

    check_is_fitted(wrapper)
    lean = copy.copy(wrapper)  # its kernels and entries stay behind
    lean.tuning_result_ = None  # what was tried does not change a prediction
    if keep_estimator is True:
        return _named(pickle.dumps(lean, protocol=5), True)
    try:
        return _named(to_bytes(lean), False)
    except UnsupportedModelError:
        if keep_estimator is False:
            raise
        return _named(pickle.dumps(lean, protocol=5), True)


def _named(payload: bytes, pickled: bool) -> Artifact:
    return Artifact(payload, pickled, hashlib.sha256(payload).hexdigest())
