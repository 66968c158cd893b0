"""Adapters: a class for each library that takes rows as its models do.

An adapter is made from a live model, or from the plain rules that an artifact keeps
of one; both convert and check rows by the same code. The adapter declines rows that
it does not know, and the caller asks the model's own method instead: the value, the
warning or the exception is then the model's by construction. Where there is no model
left to ask, an error says so.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.frames import is_table
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.frontends.base import class_names
from skforge.compiler.outputs.steps import Refused
from skforge.sources.plain import PlainRows, Read, Reading
from skforge.sources.stored_model import StoredModel

Array = NDArray[Any]

#: Tells whether the value of a rule is one that ``describe`` gives.
Check: TypeAlias = Callable[[Any, Forest], bool]

_METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


class Source(ABC):
    """A fitted model seen as a taker of rows.

    Parameters
    ----------
    model : object
        A live model, or a :class:`StoredModel`.
    forest : Forest
        The forest that was read from it.

    Attributes
    ----------
    model : object or None
        The live model; None where there is none to ask.
    stored : StoredModel or None
        The plain data kept of a model.
    """

    #: The classes of live models, as ``module.Class``.
    classes: ClassVar[tuple[str, ...]] = ()
    #: The names of its rules in artifacts.
    kinds: ClassVar[tuple[str, ...]]
    #: The rules that artifacts hold, and how they are checked.
    checks: ClassVar[Mapping[str, Check]] = {}

    #: Value of absent entries of sparse rows.
    fill: float = 0.0
    #: Whether the model's ``predict`` returns labels (a Booster's returns scores).
    labels: bool = True
    #: Dtype of leaf numbers, and whether ``apply`` drops their axis.
    leaf_dtype: Any = np.intp
    flat_leaves: bool = False
    #: Shape of one row's leaf numbers, where the model has a shape of its own.
    leaf_shape: tuple[int, ...] | None = None
    #: Whether ``predict_log_proba`` is more than the logarithm of ``predict_proba``.
    own_log_proba: bool = False

    def __init__(self, model: Any, forest: Forest) -> None:
        self.forest = forest
        self.stored = model if isinstance(model, StoredModel) else None
        self.model: Any = None if self.stored is not None else model
        #: All that its checks of rows depend on, beside names and the forest.
        self.rules = self.rules_of(model) if self.stored is None else self.stored.rules

    @classmethod
    def rules_of(cls, model: Any) -> Mapping[str, Any]:
        """Return the rules of a live model, as plain data."""
        return {}

    @classmethod
    def detects(cls, model: Any) -> bool:
        """Tell whether a live model is this adapter's, without importing a library."""
        return not class_names(model).isdisjoint(cls.classes)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        """Return objects that stay the same, and numbers that stay equal.

        They change when the live model is fitted again, trained further or edited.
        """
        return []

    def describe(self) -> tuple[str, dict[str, Any]]:
        """Return the kind and the rules of a live model, as artifacts keep them.

        Raises
        ------
        UnsupportedModelError
            If rows of this model cannot be taken without it.
        """
        return self.kinds[0], dict(self.rules)

    @property
    def declines(self) -> Refused | None:
        """Values that compiled entries decline; None: they may answer nothing."""
        return "nothing"

    @property
    def warns(self) -> bool:
        """Whether the model warns of rows that have no names."""
        return False

    def takes(self, X: Array) -> bool:
        """Tell whether the model takes the values of these rows.

        ``X`` is known to be a C-contiguous array of the forest's dtype and width.
        """
        return len(X) > 0

    def reading(self) -> Reading | None:
        """Return how rows in usual forms are read; None leaves all to :meth:`rows`."""
        return None

    @cached_property
    def _plain(self) -> PlainRows | None:
        reading = self.reading()
        if reading is None:
            return None
        return PlainRows(reading, self.forest.n_features, self.forest.category_names)

    def read(self, X: Any) -> Read | None:
        """Return rows in a usual form as the kernels take them, and a warning.

        Their values may still be refused, see :meth:`takes`.
        """
        return None if self._plain is None else self._plain.read(X)

    def _reading(self, **how: Any) -> Reading:
        """Return a reading to the forest's dtype with what ``fit`` knew of names."""
        known = self.stored or self.model
        how.setdefault("fill", self.fill)
        names = getattr(known, "feature_names_in_", None)
        return Reading(
            self.forest.input_dtype,
            None if names is None else tuple(names),
            estimator=getattr(self.stored, "class_name", type(self.model).__name__),
            **how,
        )

    def rows(self, X: Any, method: str) -> Any:
        """Return an array or CSR matrix for the kernels; None: :meth:`call` answers.

        Raises
        ------
        SourceNeededError, InvalidInputError
            If the rows are declined and there is no model to ask.
        """
        if self.stored is None:
            return self._rows(X, method)
        if type(X).__name__ == "RecordBatch" and is_table(X):
            from pyarrow import Table

            X = Table.from_batches([X])  # the same rows, of which more is known
        rows = self._rows(X, method)
        if rows is None and self.stored.answer_to_no_rows(X, method) is None:
            self.stored.decline(X, method)
        return rows

    @abstractmethod
    def _rows(self, X: Any, method: str) -> Any:
        """Return rows as the model converts them; None for rows that are not known."""

    def leaves(self, numbers: Any) -> Any:
        """Return a column of leaf numbers for each tree in the model's own form."""
        numbers = numbers.astype(self.leaf_dtype)
        if self.leaf_shape is not None:
            return numbers.reshape(-1, *self.leaf_shape)
        return numbers[:, 0] if self.flat_leaves else numbers

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Return the answer of the model's own method."""
        if self.stored is not None:
            return self.stored.call(method, X, **params)
        return self._call(method, X, **params)

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        return getattr(self.model, method)(X, **params)

    def raw(self, rows: Array) -> Array:
        """Return raw scores: the model's on one thread, or the reference walk's."""
        if self.model is not None:
            return np.asarray(self._raw(rows))
        raw = reference_raw(self.forest, rows)
        return raw[:, 0] if self.forest.n_outputs == 1 else raw

    def _raw(self, rows: Array) -> Any:
        return self.call("predict_raw", rows)

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return the model's answers on one thread, by methods of ``Predictor``."""
        return {} if self.model is None else self._outputs(X)

    def _outputs(self, X: Any) -> dict[str, Any]:
        serial = self._serial()
        return {
            name: getattr(serial, name)(X) for name in _METHODS if hasattr(serial, name)
        }

    def _serial(self) -> Any:
        """Return the model as one that uses one thread and prints nothing."""
        return self.model

    def _of_no_rows(self) -> dict[str, Any]:
        """Return dtype and shape of each answer to 0 rows; libraries differ there."""
        answers = {}
        for method in ("predict", "predict_proba", "predict_raw", "apply"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about the lack of rows
                    none = np.empty((0, self.forest.n_features), "f4")
                    found = self.call(method, none)
            except Exception:  # noqa: BLE001 - then there is no answer to keep
                continue
            answers[method] = [found.dtype.str, list(found.shape)]
        return answers


ADAPTERS: list[type[Source]] = []

AnySource = TypeVar("AnySource", bound=type[Source])


def register(adapter: AnySource) -> AnySource:
    """Add an adapter; the one registered last is asked first."""
    ADAPTERS.insert(0, adapter)
    return adapter


# ------------------------------------------------------------ checks of rules


def is_flag(value: Any, _forest: Forest) -> bool:
    """Tell whether a rule is True or False."""
    return type(value) is bool


def are(kind: type, values: Any) -> bool:
    """Tell whether values are a list of one type."""
    return type(values) is list and all(type(value) is kind for value in values)


def are_answers(answers: Any, _forest: Forest) -> bool:
    """Tell whether these are dtypes of numbers and shapes of empty arrays."""
    return type(answers) is dict and all(map(_is_empty, answers.values()))


def _is_empty(answer: Any) -> bool:
    if type(answer) is not list or len(answer) != 2:
        return False
    code, shape = answer
    plain = type(code) is str and len(code) == 3 and code[1] in "fiu"
    return plain and are(int, shape) and 0 in shape and min(shape) >= 0
