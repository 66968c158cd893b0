"""Artifacts: a model as bytes with a checksum, as it is sent to workers."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
    with_article,
)

if TYPE_CHECKING:
    from skforge.estimators import CompiledForest

KeepEstimator: TypeAlias = bool | Literal["auto"]
#: What functions that predict take as the model.
Packable: TypeAlias = "CompiledForest | Artifact | str | os.PathLike[str]"

__all__ = ["Artifact", "KeepEstimator", "Packable", "pack"]


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
        Hexadecimal SHA-256 of the payload, by which workers identify the model.
    """

    payload: bytes
    pickled: bool
    checksum: str

    def __repr__(self) -> str:
        form = "pickle" if self.pickled else ".skforge"
        return f"<Artifact: {form}, {len(self.payload):,} bytes, {self.checksum[:12]}>"

    def __dask_tokenize__(self) -> str:
        """Return the token for Dask, which is the same in every process."""
        return self.checksum

    def load(self) -> CompiledForest:
        """Return the model; its kernels are compiled on first use.

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
        model: CompiledForest
        if self.pickled:
            model = pickle.loads(self.payload)
        else:
            model = from_bytes(self.payload, f"The artifact {self.checksum[:12]}")
        return model


def pack(model: Packable, *, keep_estimator: KeepEstimator = "auto") -> Artifact:
    """Pack a model into the bytes that are sent to workers.

    Every adapter packs its model. To reuse a packed model in several calls, pass the
    artifact instead.

    Parameters
    ----------
    model : CompiledForest, Artifact or path
        A fitted CompiledForest, a ``.skforge`` file that holds one, or an Artifact,
        which is returned unchanged.
    keep_estimator : bool or "auto", default="auto"
        Whether to include the source model in a pickle; workers then need its library.
        "auto" includes it only if the model cannot be saved without it, as for
        stacks and chains.

    Returns
    -------
    Artifact

    Raises
    ------
    UnsupportedModelError
        If ``keep_estimator=False`` and the model cannot take rows without its source.
    InvalidInputError
        If ``model`` has another type, or the file holds something else.
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
    from sklearn.utils.validation import check_is_fitted

    from skforge.estimators import CompiledForest
    from skforge.persistence.artifact import to_bytes
    from skforge.persistence.loading import load

    wrapper: Any = model
    got = type(wrapper).__name__
    if isinstance(model, (str, os.PathLike)):
        wrapper = load(model)
        got = f"{os.fspath(model)}, which holds {with_article(type(wrapper).__name__)},"
    if not isinstance(wrapper, CompiledForest):
        raise InvalidInputError(
            "model must be a fitted CompiledForest, or the path of a .skforge file "
            f"that holds one. Got {got} instead."
        )
    check_is_fitted(wrapper)
    lean = copy.copy(wrapper)  # without kernels and entries
    lean.tuning_result_ = None  # trials do not affect predictions
    if keep_estimator is not True:
        try:
            return _named(to_bytes(lean), False)
        except UnsupportedModelError:
            if keep_estimator is False:
                raise
    return _named(pickle.dumps(lean, protocol=5), True)


def _named(payload: bytes, pickled: bool) -> Artifact:
    return Artifact(payload, pickled, hashlib.sha256(payload).hexdigest())
