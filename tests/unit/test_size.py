"""Modules and functions of skforge are as small as CONTRIBUTING.md says."""

from __future__ import annotations

import ast

from tests.test_layers import MODULES

#: Lines of a module, and branches of a function.
MOST_LINES, MOST_BRANCHES = 600, 20

#: Functions with more branches: a match over all statements or operations, readers of
#: frames and mappings that gain no call, and what each call of a library goes through.
BRANCHED = {
    "skforge.acceleration.around_importlib_bootstrap.answering",
    "skforge.acceleration.around_importlib_bootstrap.asked",
    "skforge.compiler.cost.schedule_facts.read",
    "skforge.compiler.ir.lir.printer._stmt",
    "skforge.compiler.ir.mir.printer._simple",
    "skforge.compiler.lowering.lower_to_lir._statement",
    "skforge.gpu.codegen.ops.emit_let",
    "skforge.runtime.records.plain_in",
}

BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.match_case),
    *(ast.comprehension, ast.BoolOp),
)


def branches(code: ast.AST) -> int:
    """Return the cyclomatic number, to which ``a and b and c`` adds one."""
    return 1 + sum(isinstance(node, BRANCHES) for node in ast.walk(code))


def test_no_module_is_long():
    lines = {
        name: file.read_text("utf-8").count("\n") for name, file in MODULES.items()
    }
    assert {name for name, n in lines.items() if n > MOST_LINES} == set()


def test_no_other_function_has_many_branches():
    functions = [
        (f"{name}.{code.name}", branches(code))
        for name, file in MODULES.items()
        for code in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(code, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert len(functions) > 4000
    assert {name for name, n in functions if n > MOST_BRANCHES} == BRANCHED
