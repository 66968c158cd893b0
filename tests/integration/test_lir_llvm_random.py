"""Random LIR: what the interpreter computes is what LLVM's code computes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal

from skforge.compiler.passes.lir import simplify
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import compile_functions
from tests.oracles.lir_interpreter import interpret_lir
from tests.run_kernel import call
from tests.strategies_lir import Program, lir_programs


@pytest.mark.parametrize("simplified", [False, True])
@settings(max_examples=15)
@given(program=lir_programs())
def test_llvm_computes_what_the_interpreter_does(
    program: Program, simplified: bool
) -> None:
    expected, got = program.arguments(), program.arguments()
    function = program.function
    interpret_lir(function, expected)
    if simplified:
        function = simplify.run(function)
    module = compile_functions([function], Target.host())
    call(module, "f", [got[param.name] for param in function.params])
    for name, value in expected.items():
        assert_array_equal(value, got[name], err_msg=name)
