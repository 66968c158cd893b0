"""Compiling: targets, lifetime of the code, errors, threads, fork, speed of calls."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import F32, F64, I64, U8, U32
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import (
    compile_functions,
    emit_assembly,
    emit_ir,
    emit_object,
)
from skforge.exceptions import CompilerError, TargetError
from tests.lir_loops import for_
from tests.llvm_kernels import buffers, compiled, kernel, targets
from tests.programs import run_python
from tests.refusals import error_of
from tests.run_kernel import call, pack_slots

DEPTH, TREES, FEATURES = 8, 100, 28
NODES = 2**DEPTH - 1


def walk_kernel(rows, name="walk"):
    """Return a walk of ``rows`` rows at once over 8-byte nodes of complete trees."""

    def write(b, nodes, leaves, x, out, n, n_trees):
        zero, one = b.const(0), b.const(1)

        def block(first, _):
            starts = [b.mul(b.add(first, k), FEATURES) for k in range(rows)]

            def tree(t, sums):
                root, leaf = b.mul(t, NODES), b.mul(t, NODES + 1)
                at = [zero] * rows
                for _ in range(DEPTH):
                    for k in range(rows):
                        place = b.mul(b.add(root, at[k]), 2)
                        threshold = b.load(nodes, place)
                        feature = b.load(nodes, b.add(place, 1), U32)
                        number = b.load(x, b.add(starts[k], b.convert(feature, I64)))
                        right = b.compare("ge", number, threshold, unordered=True)
                        left = b.add(b.mul(at[k], 2), 1)
                        at[k] = b.add(left, b.convert(right, I64))
                values = [
                    b.load(leaves, b.add(leaf, b.binary("sub", i, NODES))) for i in at
                ]
                return [b.add(s, v) for s, v in zip(sums, values, strict=True)]

            inits = [b.const(0.5, F32)] * rows
            sums = for_(b, zero, n_trees, one, tree, inits)
            for k in range(rows):
                b.store(out, b.add(first, k), sums[k])

        for_(b, zero, n, b.const(rows), block)

    params = buffers(nodes=F32, leaves=F32, x=F32, out=F32)
    return kernel({**params, "n": I64, "n_trees": I64}, write, name)


def walk_args(n):
    rng = np.random.default_rng(0)
    nodes = np.zeros((TREES, NODES, 2), np.float32)
    nodes[..., 0] = rng.normal(size=(TREES, NODES))
    feature = rng.integers(0, FEATURES, (TREES, NODES)).astype(np.uint32)
    nodes[..., 1] = feature.view(np.float32)
    leaves = rng.normal(size=(TREES, NODES + 1)).astype(np.float32)
    x = rng.normal(size=(n, FEATURES)).astype(np.float32)
    x[::9, ::5] = np.nan
    sums = np.full(n, 0.5, np.float32)
    for t in range(TREES):
        at = np.zeros(n, np.int64)
        for _ in range(DEPTH):
            below = x[np.arange(n), feature[t, at]] < nodes[t, at, 0]
            at = 2 * at + 1 + ~below
        sums += leaves[t, at - NODES]
    args = {"nodes": nodes, "leaves": leaves, "x": x, "n": n, "n_trees": TREES}
    return {**args, "out": np.zeros(n, np.float32)}, sums


def test_an_interleaved_walk_on_every_target():
    args, sums = walk_args(64)
    for target in targets().values():
        assert np.array_equal(compiled(walk_kernel(16), args, target)["out"], sums)


def test_walks_stay_scalar():
    target = Target.host()
    module = compile_functions([walk_kernel(8)], target)
    assembly = emit_assembly(walk_kernel(8), target)
    # Eight separate walks: SLP vectorisation would build vectors lane by lane, and
    # strength reduction would keep a pointer for every address (see llvm.py).
    built, compare = {
        "x86_64": (r"(?:v?p?insert|v?pinsr|v?unpck|v?pbroadcast)\w*", r"v?ucomiss"),
        "aarch64": (r"(?:ins|dup|zip[12]|uzp[12]|tbl)", r"fcmp"),
    }[target.arch]
    assert re.findall(rf"\b{built}\b", assembly) == []
    assert len(re.findall(rf"\b{compare}\b", assembly)) == 8 * DEPTH
    assert len(module.binary) < 5000


# ------------------------------------------------------------ other machines


def test_objects_for_other_machines():
    elf_machine = slice(18, 20)
    for function in (walk_kernel(4), walk_kernel(16)):
        arm = emit_object(function, Target.aarch64())
        assert arm[:4] == b"\x7fELF"
        assert arm[elf_machine] == (0xB7).to_bytes(2, "little")
        intel = emit_object(function, Target.x86_64("v3"))
        assert intel[elf_machine] == (0x3E).to_bytes(2, "little")
    assert "fcmp" in emit_assembly(walk_kernel(4), Target.aarch64())


def test_vector_width_follows_the_target():
    def write(b, x, out):
        v = b.load(x, b.const(0), lir.Vec(F32, 16))
        b.store(out, b.const(0), b.add(v, v))

    function = kernel(buffers(x=F32, out=F32), write)
    registers = {
        level: {
            name
            for name in ("zmm", "ymm", "xmm")
            if f"%{name}" in emit_assembly(function, Target.x86_64(level))
        }
        for level in ("v2", "v3", "v4")
    }
    assert registers == {"v2": {"xmm"}, "v3": {"ymm"}, "v4": {"zmm"}}


def test_code_for_another_machine_is_not_loaded():
    here = Target.host().arch
    other = Target.x86_64() if here == "aarch64" else Target.aarch64()
    with pytest.raises(TargetError):
        compile_functions([walk_kernel(1)], other)


# ------------------------------------------------------------ modules


def test_a_module_of_several_kernels():
    def add(n):
        def write(b, out):
            b.store(out, b.const(0), b.add(b.load(out, b.const(0)), n))

        return kernel(buffers(out=I64), write, f"add{n}")

    sources = [add(1), add(10)]
    module = compile_functions(sources, Target.host())
    out = np.zeros(1, np.int64)
    for name in module.names:
        call(module, name, [out])
    assert module.names == ("add1", "add10")
    assert out[0] == 11
    assert "define void @add1(" in emit_ir(sources, Target.host())
    assert module.address("add1") != module.address("add10")
    assert (
        error_of(CompilerError, module.address, "add2")
        == "No kernel 'add2' in this module; it has add1, add10."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "define void @bad(ptr %a) {\n  ret i32 0\n}",
            "LLVM refuses 'bad': LLVM IR parsing error\n<string>:2:7: error: "
            "value doesn't match function result type 'void'\n  ret i32 0\n      ^",
        ),
        ("nonsense", "LLVM refuses a module: LLVM IR parsing error\n"),
        (
            "declare void @nowhere_to_be_found()\n"
            "define void @lost(ptr %a) {\n  call void @nowhere_to_be_found()\n"
            "  ret void\n}",
            "LLVM cannot load 'lost': ",
        ),
    ],
)
def test_llvms_errors_name_the_kernel(text, message):
    with pytest.raises(CompilerError) as error:
        compile_functions([text], Target.host())
    assert str(error.value).startswith(message)


def test_nothing_to_compile():
    assert (
        error_of(CompilerError, compile_functions, [], Target.host())
        == "There is no function to compile."
    )


# ------------------------------------------------------------ calls


def test_slots():
    assert pack_slots([1, -1, 2.5]) == struct.pack("qqd", 1, -1, 2.5)
    assert pack_slots([2.0, np.int32(3), True]) == struct.pack("dqq", 2.0, 3, 1)
    assert pack_slots([np.float32(0.5)]) == pack_slots([0.5])
    array = np.zeros((2, 3))
    assert pack_slots([array]) == pack_slots([array.ctypes.data])


def test_scalar_parameters_arrive_exactly():
    kinds = (F32, F64, U8, I64, lir.I32)
    params = {"flag": lir.BOOL} | {f"n{k}": kind for k, kind in enumerate(kinds)}

    def write(b, out, flag, **numbers):
        for at, value in enumerate(numbers.values()):
            converted = value if value.type == F64 else b.convert(value, F64)
            b.store(out, b.const(at), b.select(flag, converted, b.const(0.0, F64)))

    function = kernel({**buffers(out=F64), **params}, write)
    values = (0.1, 1e300, 255, -(2**53), -7)
    args = {"flag": True} | {f"n{k}": value for k, value in enumerate(values)}
    for target in targets().values():
        got = compiled(function, {**args, "out": np.zeros(5)}, target)["out"]
        assert got.tolist() == [np.float32(0.1), 1e300, 255, -(2.0**53), -7]


def test_importing_loads_no_llvmlite():
    code = (
        "import sys, skforge.engine.cpu.threads, skforge.compiler.target;"
        "print('llvmlite' in sys.modules)"
    )
    assert run_python(code).strip() == "False"
