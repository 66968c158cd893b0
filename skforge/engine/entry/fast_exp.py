"""CatBoost's exponential as code.

:mod:`skforge.outputs.catboost` has it for arrays.
"""

from __future__ import annotations

from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F64, I64, Value
from skforge.engine.entry.terms import called
from skforge.outputs import catboost as of
from skforge.runtime.libm import on_arm


def fast_exp(x: Value, last: Value, table: str) -> Value:
    """Return the exponential of a float64 value.

    ``last`` tells whether the value is behind the last four of its array, and ``table``
    is the symbol of what :func:`table_text` defines.
    """
    if on_arm():
        return called("exp", x)
    clipped = b.select(x < of.LOWEST, of.LOWEST, x)
    clipped = b.select(clipped > of.CLIP, of.CLIP, clipped)
    rounded, y = of.polynomial(clipped)
    bits = b.bitcast(rounded, I64)
    fraction = b.view("fractions", I64, b.symbol(table))[bits & (of.STEPS - 1)]
    power = ((bits + of.BIAS) >> of.SHIFT) << of.PLACE
    result = y * b.bitcast(power | fraction, F64)
    result = b.select(last & (x <= of.LOWEST), 0.0, result)
    return b.select(last & (x >= of.GREATEST), float("inf"), result)


def table_text(symbol: str) -> str:
    """Return the definition of the fractions of powers of 2."""
    words = ", ".join(f"i64 {fraction}" for fraction in of.fractions().tolist())
    return f"@{symbol} = hidden constant [{of.STEPS} x i64] [ {words} ]"
