"""Runs LIR on NumPy arrays: the oracle of everything below LIR.

A function is translated once to Python text, a line or two an operation, so that
running it costs what plain Python costs (about 0.1 µs for a scalar operation). What
LIR leaves undefined (an access outside a buffer, division by zero, a shift by too
much, two lanes that write one element, threads of a launch that race for one) stops the
program with the statement named; memory that was never written reads as NaN or 0xA5
bytes. Iterations whose order LIR leaves open can be shuffled.

Threads of a region run one after another, unless it has a ``WarpReduce``: then each
thread is a generator that pauses there until its warp has arrived. A private buffer
allocated outside the regions of a grid has one copy for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Buffer, Scalar, Value
from skforge.compiler.ir.lir.printer import print_stmt
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.exceptions import CompilerError
from tests.oracles.lir_memory import DTYPES, Fault, Order, memory_of
from tests.oracles.lir_translate import GLOBALS, Translator
from tests.oracles.lir_values import constant, limits


class InterpretedFunction:
    """A LIR function ready to run; call it with its arguments by name."""

    def __init__(self, function: lir.Function) -> None:
        verify_lir(function)
        self.function = function
        translator = Translator(function)
        self.text = translator.text()
        self._stmts = translator.stmts
        self._stored = translator.stored
        self._file = f"<LIR {function.name}>"
        names = {**GLOBALS, **translator.constants}
        exec(compile(self.text, self._file, "exec"), names)
        self._run: Callable[..., None] = names["run"]

    def __call__(self, args: Mapping[str, Any], *, shuffle: int | None = None) -> None:
        """Run in place on the arrays of ``args``."""
        params = self.function.params
        if wrong := {p.name for p in params} ^ set(args):
            raise CompilerError(
                f"{self.function.name} takes {[p.name for p in params]}; missing or "
                f"unknown: {sorted(wrong)}."
            )
        values = [self._bind(p, args[p.name]) for p in params]
        try:
            with np.errstate(all="ignore"):
                self._run(Order(shuffle), *values)
        except Fault as error:
            where = self._where(error.__traceback__)
            raise CompilerError(
                f"{error}, in {where!r} of {self.function.name}."
            ) from None

    def _bind(self, param: Value | Buffer, arg: Any) -> Any:
        if isinstance(param, Value):
            assert isinstance(param.type, Scalar)
            if not param.type.is_float and param.type != lir.BOOL:
                low, high = limits(param.type)
                if not low <= int(arg) <= high:
                    raise CompilerError(f"{param.name}={arg} is no {param.type.name}.")
            return constant(arg, param.type)
        dtype = DTYPES[param.element.name]
        if not isinstance(arg, np.ndarray) or arg.dtype != dtype:
            kind = getattr(arg, "dtype", type(arg).__name__)
            raise CompilerError(
                f"buffer {param.name} is a NumPy array of {dtype}; got {kind}."
            )
        if not arg.flags.c_contiguous:
            raise CompilerError(f"buffer {param.name} must be C-contiguous.")
        if param.name in self._stored and not arg.flags.writeable:
            raise CompilerError(f"buffer {param.name} is stored to but read-only.")
        return memory_of(arg.reshape(-1))

    def _where(self, trace: TracebackType | None) -> str:
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._file:
                line = trace.tb_lineno
            trace = trace.tb_next
        stmt = self._stmts.get(line)
        return print_stmt(stmt) if stmt is not None else "?"


_recent: dict[int, InterpretedFunction] = {}


def interpret_lir(
    function: lir.Function,
    args: Mapping[str, np.ndarray[Any, Any] | int | float],
    *,
    shuffle: int | None = None,
) -> None:
    """Run ``function`` in place on the arrays in ``args``.

    Parameters
    ----------
    function : lir.Function
        What to run.
    args : mapping
        A C-contiguous NumPy array of the element's dtype for each buffer, a number
        for each scalar.
    shuffle : int or None, default=None
        Seed for the order of parallel iterations, blocks and threads; None runs them
        in order.

    Raises
    ------
    CompilerError
        When the program does what LIR leaves undefined; names the statement.
    """
    known = _recent.get(id(function))
    if known is None or known.function is not function:
        if len(_recent) >= 32:
            _recent.clear()
        known = _recent[id(function)] = InterpretedFunction(function)
    known(args, shuffle=shuffle)
