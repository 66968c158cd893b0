"""Arithmetic of float32 arrays with the bits of onnxruntime's kernels on x86.

Its exponential is a polynomial with fused multiply-adds; its sums of rows are Eigen's,
whose order depends on where a row begins in memory, so on its place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.runtime import facts, libm

_F = np.float32
HIGHEST, LOWEST = _F(88.7762626647950), _F(-103.9720840454)
LEAST_IN_SUMS = _F(-87.6831131)  # less becomes zero, but not with AVX-512
ROUND = _F(12582912.0)  # adding it rounds to whole numbers, in the lowest bits
LOG2_E = _F(1.44269504088896341)
LN2_HIGH, LN2_LOW = _F(-6.93145752e-1), _F(-1.42860677e-6)
POWERS = tuple(
    _F(float.fromhex(text))
    for text in (
        *("0x1.694000p-10", "0x1.125edcp-7", "0x1.555b5ap-5", "0x1.555450p-3"),
        *("0x1.fffff6p-2", "0x1.0p+0"),
    )
)
#: Numerator and denominator of the logistic function, by falling powers of x * x.
ABOVE, BELOW = (
    tuple(map(_F, numbers))
    for numbers in (
        (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05,
         8.51377133304701e-03, 2.48287947061529e-01),
        (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06,
         1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
    )
)  # fmt: skip
ONE, LEAST = np.int32(0x3F800000), np.int32(-0x3F000000)  # bits of 1.0; of 2**-126


def multiply_add(a: Any, b: Any, c: Any) -> Array:
    """Return ``a * b + c`` of float32 numbers, rounded once."""
    product = np.multiply(a, b, dtype=np.float64)  # exact
    total = np.add(product, c)
    # what rounding lost sets the last bit, so that float32 rounds the exact number
    part = total - product
    lost = (product - (total - part)) + (c - part)
    bits = total.view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    inexact = (lost != 0) & np.isfinite(total)
    odd = np.where(inexact & (bits & 1 == 0), bits + step, bits)
    return np.asarray(odd.view(np.float64), np.float32)


def exp(x: Array) -> Array:
    x = np.where(x > HIGHEST, HIGHEST, np.where(x < LOWEST, LOWEST, x))
    rounded = multiply_add(x, LOG2_E, ROUND)
    whole = rounded - ROUND
    rest = multiply_add(whole, LN2_HIGH, x)
    rest = multiply_add(whole, LN2_LOW, rest)
    exponent = rounded.view(np.int32) << 23
    normal = np.clip(exponent, LEAST, ONE)
    # two factors, as the exponent of one does not reach the least numbers
    first, second = ((bits + ONE).view(_F) for bits in (exponent - normal, normal))
    power = _polynomial(POWERS, rest)
    return np.asarray(multiply_add(power, rest * first, first) * second)


def logistic(x: Array) -> Array:
    x = np.where(x > 18, _F(18), np.where(x < -18, _F(-18), x))
    square = x * x
    above, below = (_polynomial(numbers, square) for numbers in (ABOVE, BELOW))
    return np.maximum(above * x / below + _F(0.5), _F(0))


def _polynomial(numbers: tuple[Any, ...], x: Array) -> Array:
    result = np.full_like(x, numbers[0])
    for number in numbers[1:]:
        result = multiply_add(result, x, number)
    return result


#: What graphs call. :mod:`skforge.engine.mlas_routine` puts machine code in its place.
FUNCTIONS: dict[str, Callable[[Array], Array]] = {"exp": exp, "logistic": logistic}


def in_order(x: Array, axis: int) -> Array:
    """Return sums along an axis, one number after another."""
    return np.asarray(np.add.accumulate(x, axis=axis).take([-1], axis))


def row_sums(x: Array) -> Array:
    """Return sums along the last axis, which keep it."""
    width = x.shape[-1]
    rows = np.ascontiguousarray(x).reshape(-1, width)
    sums = np.empty((len(rows), 1), x.dtype)
    for turn in range(4):  # places of a row's first number among four
        start = -turn * width % 4
        sums[turn::4] = _aligned_sums(rows[turn::4], start)
    return sums.reshape(*x.shape[:-1], 1)


def _aligned_sums(rows: Array, start: int) -> Array:
    """Return sums of rows whose number ``start`` is the first of four in memory."""
    width = rows.shape[1]
    n_fours = (width - start) // 4
    if n_fours < 1:
        return in_order(rows, 1)
    end = start + 4 * n_fours
    fours = rows[:, start:end].reshape(len(rows), n_fours, 4)
    even = n_fours // 2 * 2
    if n_fours == 1:
        lanes = fours[:, 0]
    else:
        pairs = (in_order(fours[:, i:even:2], 1)[:, 0] for i in range(2))
        lanes = np.add(*pairs)
        lanes = lanes + fours[:, -1] if n_fours > even else lanes
    sums = (lanes[:, :1] + lanes[:, 2:3]) + (lanes[:, 1:2] + lanes[:, 3:])
    return in_order(np.hstack([sums, rows[:, :start], rows[:, end:]]), 1)


def products_of_one(x: Array, weights: Array, zero: Any = 0) -> Array:
    """Return the sums of products for each row of weights, each rounded by itself.

    Eight sums take turns. Four rows of weights together add them in another order than
    two, and than a last one.
    """
    width = len(x)
    products = np.full((len(weights), -(-width // 8) * 8), zero, x.dtype)
    products[:, :width] = x * weights
    eights = in_order(products.reshape(len(weights), -1, 8), 1)
    halves = eights.reshape(-1, 2, 4)
    sums = np.add(*in_order(halves, 2)[:, :, 0].T)
    many = len(weights) // 4 * 4
    lanes = halves[many:, :, :2] + halves[many:, :, 2:]
    sums[many:] = (lanes[:, 0] + lanes[:, 1]).sum(axis=1)
    if len(weights) % 2:
        sums[-1:] = _by_pairs(eights[-1])
    return np.asarray(sums)


def _by_pairs(x: Array) -> Array:
    while x.shape[-1] > 1:
        x = x[..., ::2] + x[..., 1::2]
    return x[..., 0]


def softmax(x: Array) -> Array:
    """Return the softmax of rows of at most sixteen numbers."""
    n_rows, width = x.shape
    x = x - x.max(axis=1, keepdims=True)
    powers = exp(x)
    if not facts.has_avx512():
        powers[x < LEAST_IN_SUMS] = 0
    eights = np.zeros((n_rows, 2, 8), np.float32)
    eights.reshape(n_rows, 16)[:, :width] = powers
    sums = _by_pairs((eights[:, 0] + eights[:, 1]).reshape(n_rows, 2, 4))
    return np.asarray(powers * (_F(1) / (sums[:, :1] + sums[:, 1:])))


def softmax_of_few(x: Array) -> Array:
    """Return the softmax of rows of which linear models have two to four numbers."""
    powers = libm.exp(x - x.max(axis=1, keepdims=True))
    return powers / in_order(powers, 1)


#: Numerator and denominator of log(1 + x) / x, by falling powers of x.
LOG_ABOVE = tuple(
    map(_F, (0.18256296349849254, 1.0000000190281063, 1.0000000190281136))
)
LOG_BELOW = tuple(
    map(_F, (0.049616247954120038, 0.59923249590823520, 1.4999999999999927, 1))
)


def log(x: Array) -> Array:
    """Return logarithms: Eigen's of numbers in whole fours, the C library's of others.

    So the bits depend on the place in the batch.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    end = len(flat) // 4 * 4
    parts = log_of_fours(flat[:end]), libm.log(flat[end:])
    return np.concatenate(parts).reshape(x.shape)


def of_fours(x: Array) -> Array:
    """Return the first column of rows in whole fours, and the last of the others."""
    fours = np.arange(len(x)) < len(x) // 4 * 4
    return np.where(fours, x[:, 0], x[:, -1])[:, None]


def log_of_fours(x: Array) -> Array:
    part, exponent = np.frexp(x)
    low = part < _F(0.707106781186547524)
    part = np.where(low, part, _F(0)) + (part - _F(1))
    whole = exponent.astype(np.float32) - low
    above, below = (np.full_like(x, numbers[0]) for numbers in (LOG_ABOVE, LOG_BELOW))
    for number in LOG_ABOVE[1:]:
        above = above * part + number
    for number in LOG_BELOW[1:]:
        below = below * part + number
    logs = whole * _F(0.693147180559945309) + above * part / below
    logs = np.where(np.isposinf(x), x, logs)
    return np.where(x > 0, logs, np.where(x == 0, _F(-np.inf), _F(np.nan)))
