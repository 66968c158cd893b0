"""Functions of one value as expressions in the C library's arithmetic.

:func:`evaluate` computes them for arrays on the host and on GPUs; compiled entries and
exported libraries render the same operations in the same order as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from skforge.compiler.forest.outputs import Function
from skforge.compiler.outputs import libm

OpName: TypeAlias = Literal[
    "neg", "add", "mul", "div", "least", "exp", "log1p", "positive", "sign"
]
Operand: TypeAlias = "Op | float | Literal['x', '-parameter']"
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class Op:
    """An operation; ``positive`` returns 1 or 0, ``sign`` 1, -1 or 0."""

    name: OpName
    operands: tuple[Operand, ...]


def _op(name: OpName, *operands: Operand) -> Op:
    return Op(name, operands)


_CLIPPED = _op("least", _op("neg", "x"), libm.SIGMOID_LIMIT)

#: By the ``function`` of an ``OutputSpec``.
EXPRESSIONS: dict[Function, Operand] = {
    "identity": "x",
    "exp": _op("exp", "x"),
    "hinge": _op("positive", "x"),
    "sigmoid": _op("div", 1.0, _op("add", _op("exp", _CLIPPED), 1.0)),
    "logistic": _op(
        "div", 1.0, _op("add", 1.0, _op("exp", _op("mul", "-parameter", "x")))
    ),
    "signed_square": _op("mul", _op("mul", _op("sign", "x"), "x"), "x"),
    "log1p_exp": _op("log1p", _op("exp", "x")),
}


def render(
    function: Function,
    x: Text,
    parameter: float,
    number: Callable[[float], Text],
    apply: Callable[[OpName, list[Text]], Text],
) -> Text:
    """Render a function of ``EXPRESSIONS`` of ``x`` with the caller's callbacks.

    ``number`` renders a constant, ``apply`` an operation on rendered operands.
    """

    def of(operand: Operand) -> Text:
        if isinstance(operand, Op):
            return apply(operand.name, [of(one) for one in operand.operands])
        if operand == "x":
            return x
        return number(-parameter if operand == "-parameter" else float(operand))

    return of(EXPRESSIONS[function])


@dataclass(frozen=True, slots=True)
class Library:
    """An array library: NumPy with the C library's ``exp``, or a device's own."""

    xp: Any
    exp: Callable[[Any], Any]
    sort: Callable[[Any], Any]


HOST = Library(np, libm.exp, partial(np.sort, axis=1, kind="stable"))


def evaluate(function: Function, scores: Any, parameter: float, on: Library) -> Any:
    """Return a function of ``EXPRESSIONS`` of each score."""
    dtype = scores.dtype
    operations: dict[OpName, Callable[..., Any]] = {
        "neg": lambda a: -a,
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "least": on.xp.minimum,
        "exp": on.exp,
        "log1p": libm.log1p,
        "positive": lambda a: (a > 0).astype(dtype),
        "sign": lambda a: (a > 0).astype(dtype) - (a < 0),
    }
    return render(
        function, scores, parameter, dtype.type, lambda name, of: operations[name](*of)
    )


def softmax(scores: Any, on: Library) -> Any:
    """Return XGBoost's softmax: exponentials, their sum in float64, in order."""
    powers = on.exp(scores - scores.max(axis=1, keepdims=True))
    total = on.xp.zeros(len(scores), dtype="float64")
    for column in range(powers.shape[1]):
        total = total + powers[:, column]
    return powers / total.astype(scores.dtype)[:, None]
