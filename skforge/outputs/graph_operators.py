"""Operators of ONNX graphs on what trees answer, with onnxruntime's bits.

Elementwise arithmetic is IEEE's, as NumPy's is. Sums, exponentials and linear models
follow the order of onnxruntime's own kernels, in :mod:`skforge.outputs.mlas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.outputs import mlas
from skforge.runtime import libm

NodeAttributes: TypeAlias = Mapping[str, Sequence[Any]]
#: Takes the attributes and the inputs; None stands for an input that is absent.
ScoreOperator: TypeAlias = Callable[..., Any]

# TensorProto.DataType
DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}


class UnknownError(Exception):
    """An operator has a form whose bits are not known; the text says which."""


def _one(at: NodeAttributes, name: str, default: int) -> int:
    return int(at.get(name, [default])[0])


def _ints(at: NodeAttributes, name: str, given: Any) -> list[int]:
    """Return whole numbers that newer operators have as an input, older ones as not."""
    values = at.get(name, ()) if given is None else np.asarray(given).reshape(-1)
    return [int(value) for value in values]


def _floats(x: Array) -> Array:
    if x.dtype != np.float32:
        raise UnknownError(f"computes with {x.dtype}, not float32")
    return x


# ------------------------------------------------------------ value by value


def _with_numbers(function: Any, at: NodeAttributes, *inputs: Array) -> Array:
    if any(x.dtype.kind not in "fi" for x in inputs):
        raise UnknownError("computes with values that are no numbers")
    result = inputs[0]
    for x in inputs[1:]:
        if x.dtype != result.dtype:
            raise UnknownError("computes with values of two types")
        result = function(result, x)
    return result


def _further(function: Any, a: Array, b: Array) -> Array:
    """Return the greater or lesser number: the second of equal ones, NaN before all."""
    return np.where(function(a, b) | (a != a), a, b)


def _power(at: NodeAttributes, a: Array, b: Array) -> Array:
    return np.asarray(libm.power(*np.broadcast_arrays(_floats(a), _floats(b))))


def _looked_up(at: NodeAttributes, x: Array, keys: Array, values: Array) -> Array:
    """Return the values of keys, which are sorted; the last one is of other numbers."""
    if x.dtype != keys.dtype:
        raise UnknownError(f"looks up {x.dtype} values among {keys.dtype}")
    at_most = np.minimum(np.searchsorted(keys, x), len(keys) - 1)
    return values[np.where(keys[at_most] == x, at_most, len(keys))]


def _divide(at: NodeAttributes, a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        raise UnknownError("divides whole numbers")
    return _with_numbers(np.divide, at, a, b)


def _clip(at: NodeAttributes, x: Array, low: Any = None, high: Any = None) -> Array:
    """Clip as onnxruntime does: NaN stays."""
    low = at["min"][0] if low is None and "min" in at else low
    high = at["max"][0] if high is None and "max" in at else high
    if low is not None:
        x = np.where(x < low, x.dtype.type(low), x)
    return x if high is None else np.where(x > high, x.dtype.type(high), x)


def _cast(at: NodeAttributes, x: Array) -> Array:
    to = _one(at, "to", 0)
    if to not in DTYPES or x.dtype == object:
        raise UnknownError("converts values to or from a type that is no number")
    if x.dtype.kind == "f" and to in (6, 7):
        bound = 2.0 ** (31 if to == 6 else 63)
        whole = np.trunc(x.astype(np.float64))
        # on x86, what does not fit is the least number
        x = np.where((whole >= -bound) & (whole < bound), whole, -bound)
    return x.astype(DTYPES[to])


# ------------------------------------------------------------ shapes


def _reshape(at: NodeAttributes, x: Array, shape: Any = None) -> Array:
    if _one(at, "allowzero", 0):
        raise UnknownError("allows zeros in shapes")
    sizes = _ints(at, "shape", shape)
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(sizes)])


def _flatten(at: NodeAttributes, x: Array) -> Array:
    axis = _one(at, "axis", 1)
    before = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(before, x.size // before if before else -1)


def _transpose(at: NodeAttributes, x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(at.get("perm")))


def _squeeze(at: NodeAttributes, x: Array, axes: Any = None) -> Array:
    return x.squeeze(tuple(_ints(at, "axes", axes)) or None)


def _unsqueeze(at: NodeAttributes, x: Array, axes: Any = None) -> Array:
    return np.expand_dims(x, tuple(_ints(at, "axes", axes)))


def _slice(at: NodeAttributes, x: Array, *inputs: Any) -> Array:
    starts, ends, axes, steps = (*inputs, None, None, None, None)[:4]
    first = _ints(at, "starts", starts)
    where = _ints(at, "axes", axes) or [*range(len(first))]
    by = _ints(at, "steps", steps) or [1] * len(first)
    index = [slice(None)] * x.ndim
    for begin, end, axis, step in zip(
        first, _ints(at, "ends", ends), where, by, strict=True
    ):
        if step < 1:
            raise UnknownError("takes values backwards")
        index[axis] = slice(begin, end, step)
    return x[tuple(index)]


def _split(at: NodeAttributes, x: Array, sizes: Any = None) -> list[Array]:
    axis, n = _one(at, "axis", 0), _one(at, "parts", 1)
    each = _ints(at, "split", sizes)
    if not each:
        chunk = -(-x.shape[axis] // n)
        each = [chunk] * n
    return np.split(x, np.cumsum(each)[:-1], axis)


def _extract(at: NodeAttributes, x: Array, places: Array) -> Array:
    """Take elements along the last axis; of a list, a matrix of one row."""
    taken = x.take(places.reshape(-1), x.ndim - 1)
    return taken[None] if x.ndim == 1 else taken


def _gather(at: NodeAttributes, x: Array, places: Array) -> Array:
    return x.take(places, _one(at, "axis", 0))


def _gather_each(at: NodeAttributes, x: Array, places: Array) -> Array:
    return np.take_along_axis(x, places, _one(at, "axis", 0))


def _constant_of_shape(at: NodeAttributes, shape: Array, value: Array) -> Array:
    return np.full(shape.tolist(), value.reshape(-1)[0])


# ------------------------------------------------------------ along an axis


def _greatest(function: Any, at: NodeAttributes, x: Array) -> Array:
    if _one(at, "select_last_index", 0):
        raise UnknownError("takes the last of equal numbers")
    if x.dtype.kind == "f" and np.isnan(x).any():
        raise UnknownError("compares NaN")
    axis = _one(at, "axis", 0)
    place = function(x, axis=axis, keepdims=True).astype(np.int64)
    return place if _one(at, "keepdims", 1) else place.squeeze(axis)


def _reduce(mean: bool, at: NodeAttributes, x: Array, axes: Any = None) -> Array:
    every = [axis % x.ndim for axis in _ints(at, "axes", axes)]
    if len(every) != 1 or every[0] not in (0, x.ndim - 1) or x.ndim < 2:
        raise UnknownError("adds along several axes or one in the middle")
    (axis,) = every
    sums = mlas.in_order(_floats(x), 0) if axis == 0 else mlas.row_sums(_floats(x))
    if mean:
        sums = sums / sums.dtype.type(x.shape[axis])
    return sums if _one(at, "keepdims", 1) else sums.squeeze(axis)


def _top(at: NodeAttributes, x: Array, k: Array) -> tuple[Array, Array]:
    usual = _one(at, "largest", 1) == _one(at, "sorted", 1) == 1
    if not usual or _one(at, "axis", -1) % x.ndim != x.ndim - 1 or np.isnan(x).any():
        raise UnknownError("sorts in another way than from the largest on")
    order = np.argsort(-x, axis=-1, kind="stable")[..., : int(k.reshape(-1)[0])]
    return np.take_along_axis(x, order, -1), order.astype(np.int64)


def _running_sum(at: NodeAttributes, x: Array, axis: Array) -> Array:
    if _one(at, "exclusive", 0) or _one(at, "reverse", 0):
        raise UnknownError("adds in another way than from the first number on")
    return np.add.accumulate(x, axis=int(axis.reshape(-1)[0]))


# ------------------------------------------------------------ models


def _linear(at: NodeAttributes, x: Array, weights: Array, intercepts: Array) -> Array:
    """Return a row's products with each row of weights, added with one rounding."""
    if _floats(x).shape[1] > 128:
        raise UnknownError("adds more than 128 products")
    if len(x) == 1:
        return mlas.products_of_one(x[0], weights)[None] + intercepts
    sums = np.zeros((len(x), len(weights)), np.float32)
    for column, weight in zip(x.T, weights.T, strict=True):
        sums = mlas.multiply_add(column[:, None], weight[None, :], sums)
    return sums + intercepts


def _softmax(few: bool, at: NodeAttributes, x: Array) -> Array:
    """Return the softmax of rows, with ``few`` that of LinearClassifier."""
    width = _floats(x).shape[-1]
    if x.ndim != 2 or _one(at, "axis", -1) not in (-1, 1):
        raise UnknownError("computes the softmax of another axis than the last of two")
    if not np.isfinite(x).all():
        raise UnknownError("computes the softmax of numbers that are not finite")
    if width > 16:  # from here on, the order is another with AVX-512 than without
        raise UnknownError("computes the softmax of more than 16 numbers")
    return mlas.softmax_of_few(x) if few and width < 5 else mlas.softmax(x)


def _by_sum(at: NodeAttributes, x: Array) -> Array:
    """Return Normalizer's rows with norm L1."""
    sums = mlas.in_order(abs(_floats(x)), x.ndim - 1)
    return np.where(sums != 0, x / sums, x)


def _by_root(at: NodeAttributes, x: Array) -> Array:
    """Return Normalizer's rows with norm L2."""
    squares = _floats(x) * x
    parts = np.sqrt(squares / mlas.in_order(squares, x.ndim - 1))
    signed = np.where(x < 0, -parts, parts)
    return np.where(squares.any(-1, keepdims=True), signed, x)


def _by_greatest(at: NodeAttributes, x: Array) -> Array:
    """Return Normalizer's rows with norm MAX, which has a sign, and skips NaN."""
    least = np.finfo(_floats(x).dtype).min  # which -inf does not exceed
    greatest = np.fmax.reduce(x, -1, keepdims=True, initial=least)
    return np.where(greatest != 0, x / greatest, x)


def _by_norm(at: NodeAttributes, x: Array) -> Array:
    """Return LpNormalization's rows by their norm; rows of norm 0 become zeros."""
    if _one(at, "axis", -1) not in (-1, x.ndim - 1):
        raise UnknownError("divides by norms along another axis than the last")
    plain = _one(at, "p", 2) == 1
    sums = mlas.in_order(abs(x) if plain else _floats(x) * x, x.ndim - 1)
    norms = sums if plain else np.sqrt(sums)
    return np.where(norms != 0, _floats(x) / norms, np.float32(0))


def _of(function: Any) -> ScoreOperator:
    return lambda at, *inputs: function(*inputs)


OPERATORS: dict[str, ScoreOperator] = {
    **{"Add": partial(_with_numbers, np.add), "Sum": partial(_with_numbers, np.add)},
    "Sub": partial(_with_numbers, np.subtract),
    "Mul": partial(_with_numbers, np.multiply),
    **{"Div": _divide, "Pow": _power, "Lookup": _looked_up},
    "Max": partial(_with_numbers, partial(_further, np.greater)),
    "Min": partial(_with_numbers, partial(_further, np.less)),
    **{"Neg": _of(np.negative), "Abs": _of(np.abs), "Sign": _of(np.sign)},
    **{"Not": _of(np.logical_not), "Equal": _of(np.equal), "Where": _of(np.where)},
    **{"Less": _of(np.less), "Greater": _of(np.greater)},
    **{"LessOrEqual": _of(np.less_equal), "GreaterOrEqual": _of(np.greater_equal)},
    **{"And": _of(np.logical_and), "Or": _of(np.logical_or)},
    **{"Cast": _cast, "Clip": _clip, "Identity": _of(lambda x: x)},
    **{"Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose},
    **{"Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Slice": _slice, "Split": _split},
    "Concat": lambda at, *inputs: np.concatenate(inputs, _one(at, "axis", 0)),
    **{"Gather": _gather, "GatherElements": _gather_each},
    "Shape": _of(lambda x: np.array(x.shape, np.int64)),
    **{"ConstantOfShape": _constant_of_shape, "ArrayFeatureExtractor": _extract},
    "ArgMax": partial(_greatest, np.argmax),
    "ArgMin": partial(_greatest, np.argmin),
    **{"ReduceSum": partial(_reduce, False), "ReduceMean": partial(_reduce, True)},
    **{
        "TopK": _top,
        "CumSum": _running_sum,
        "Exp": _of(lambda x: mlas.FUNCTIONS["exp"](_floats(x))),
    },
    "Sigmoid": _of(lambda x: mlas.FUNCTIONS["logistic"](_floats(x))),
    "Log": _of(lambda x: mlas.log(_floats(x))),
    **{"LogOfFours": _of(mlas.log_of_fours), "LogOfRest": _of(libm.log)},
    "Fours": _of(mlas.of_fours),
    **{"Softmax": partial(_softmax, False), "SoftmaxOfLinear": partial(_softmax, True)},
    **{"Linear": _linear, "L1": _by_sum, "L2": _by_root, "MAX": _by_greatest},
    "LpNormalization": _by_norm,
}
