"""The input stage by parts: transposing squares, thermometers, lines of one block."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.binning.rules import BlockRows, ReadingRules
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import transpose
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, F64, I64, U8, Buffer, Scalar, Value, Vec
from skforge.compiler.layouts.bitsliced.bitsliced import table_and_code
from skforge.compiler.layouts.bitsliced.predicate_lines import _steps
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.target import Target
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import evaluate_predicates
from tests.exactness.checks import emitted
from tests.exactness.sliced import COUNTS, counted, forest, rows_of, sliced
from tests.lir_loops import for_
from tests.llvm_kernels import DTYPES, check, compiled, kernel, targets
from tests.oracles.lir_interpreter import interpret_lir


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("element", [F32, F64], ids=lambda e: e.name)
def test_transpose(element: Scalar, lanes: int) -> None:
    if lanes * element.bytes > 64 or lanes * element.bytes < 16:
        return  # no register has these

    def write(b: Builder, x: Buffer, out: Buffer) -> None:
        type_ = Vec(element, lanes)
        rows = [b.load(x, b.const(k * lanes), type_) for k in range(lanes)]
        for k, column in enumerate(transpose(rows, element.bytes)):
            b.store(out, b.const(k * lanes), column)

    square = np.arange(lanes * lanes, dtype=DTYPES[element]).reshape(lanes, lanes)
    args = {"x": square.reshape(-1), "out": np.zeros(lanes * lanes, square.dtype)}
    params = {"x": Buffer("x", element), "out": Buffer("out", element)}
    wanted = np.ascontiguousarray(square.T).reshape(-1)
    check(kernel(params, write), args, {"out": wanted})


@pytest.mark.parametrize("n_bits", [1, 2, 3, 4])
def test_steps_count_up_to_the_number(n_bits: int) -> None:
    plane = Vec(I64, 8)

    def write(b: Builder, x: Buffer, out: Buffer) -> None:
        bits = [b.load(x, b.const(8 * k), plane) for k in range(n_bits)]
        for i, step in enumerate(_steps(bits, plane)):
            b.store(out, b.const(8 * i), step)

    random = np.random.default_rng(n_bits)
    rows = random.integers(0, 2, (n_bits, 512)).astype(np.uint8)
    x = np.packbits(rows, axis=1, bitorder="little").reshape(-1).view(np.int64)
    number = np.zeros(512, np.int64)
    for bit in rows:
        number = 2 * number + bit
    steps = np.stack([number >= i for i in range(17)])
    wanted = np.packbits(steps, axis=1, bitorder="little").reshape(-1).view(np.int64)
    args = {"x": x, "out": np.zeros(17 * 8, np.int64)}
    params = {"x": Buffer("x", I64), "out": Buffer("out", I64)}
    check(kernel(params, write), args, {"out": wanted})


# ------------------------------------------------------------ lines


def lines_of(
    made: Forest, rows: np.ndarray, target: Target, block: int, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each predicate's line of the block at a row: interpreted, compiled."""
    hir = driver.build_hir(made, sliced(block), "exact")
    table, make = table_and_code(hir, target, block)
    b = Builder()
    element = F32 if rows.dtype == np.float32 else F64
    source, out = Buffer("rows", element), Buffer("out", U8, alignment=64)
    n_rows, stride = Value("n_rows", I64), Value("stride", I64)
    data: dict[str, tuple[Buffer, np.ndarray]] = {}

    def model(name: str, array: np.ndarray) -> Buffer:
        if name not in data:
            array = np.ascontiguousarray(array)
            kind = next(k for k, d in DTYPES.items() if np.dtype(d) == array.dtype)
            data[name] = Buffer(name, kind, alignment=64), array
        return data[name][0]

    where = BlockRows(source, n_rows, stride, b.const(first), made.n_features)
    with b:
        code = make(ReadingRules(hir.forest, hir.comparison, model), where)
    n_bytes = table.n_lines * block // 8

    def copy(i: Value, _: tuple[Value, ...]) -> None:
        b.store(out, i, b.load(code.lines, i))

    for_(b, b.const(0), b.const(n_bytes), b.const(1), copy)
    buffers = [buffer for buffer, _ in data.values()]
    params = (source, n_rows, stride, out, *buffers)
    function = lir.Function("lines", params, b.finish())
    args = {
        "rows": rows.reshape(-1),
        "n_rows": len(rows),
        "stride": rows.shape[1],
        "out": np.zeros(n_bytes, np.uint8),
        **{name: array for name, (_, array) in data.items()},
    }

    def bits(out: np.ndarray) -> np.ndarray:
        whole = np.unpackbits(out.reshape(-1, block // 8), axis=1, bitorder="little")
        return whole[table.line_of].astype(bool)

    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    interpret_lir(function, copies)
    return bits(copies["out"]), bits(compiled(function, args, target)["out"])


CASES = {
    "lt": lambda: counted(COUNTS[:12]),
    "le, right": lambda: counted(COUNTS[:12], comparison=Comparison.LE, sides="right"),
    "never": lambda: counted((9, 20, 40), missing=Missing.NEVER),
    "zero": lambda: counted((9, 20, 40), missing=Missing.ZERO, infinite=True),
    "twice": lambda: counted((3, 17, 31), twice=True),
    "double": lambda: counted((3, 17, 63, 64), dtype="float64"),
    "buckets": lambda: counted((32, 64, 255), even=True, sides="right"),
    "buckets, both": lambda: counted((100,), even=True, twice=True, infinite=True),
    "buckets, double": lambda: counted(
        (40, 200), even=True, dtype="float64", comparison=Comparison.LE
    ),
    "buckets, wide": lambda: counted(
        (40, 70, 9, 255), even=True, used=(0, 17, 499, 500), n_features=501
    ),
    "few in buckets": lambda: counted((64, 255), sides="right", infinite=True),
    "few in buckets, double": lambda: counted(
        (70, 200), dtype="float64", comparison=Comparison.LE
    ),
    "few in buckets, wide": lambda: counted(
        (70, 9, 255), used=(0, 17, 500), n_features=501
    ),
    "categories": lambda: forest("categories, cut"),
    "wide": lambda: counted((20, 5, 9, 40), used=(0, 17, 499, 500), n_features=501),
    "wide, double": lambda: counted(
        (20, 40), used=(0, 250), n_features=251, dtype="float64", sides="right"
    ),
    "wide, two runs": lambda: counted(
        (1,) * 158 + (12, 40), used=(*range(0, 795, 5), 800), n_features=801
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", ["host", "v2", "v3", "v4"])
def test_every_line_is_its_predicate(level: str, name: str) -> None:
    """Bit by bit; what stands past the last row is nobody's business."""
    if level not in targets():
        pytest.skip(f"this machine does not run x86-64-{level}")
    made = CASES[name]()
    normal, _ = normalize_predicates.run(made)
    block = 256 if "wide" in name else 64
    n, first = block + 40, block
    rows = rows_of(made, n)
    last = rows[first:]
    wanted = np.stack(
        [
            ~evaluate_predicates(normal, np.full(len(last), p), last[:, feature])
            for p, feature in enumerate(normal.feature.tolist())
        ]
    )
    interpreted, ran = lines_of(made, rows, targets()[level], block, first)
    np.testing.assert_array_equal(interpreted[:, : len(last)], wanted)
    np.testing.assert_array_equal(ran[:, : len(last)], wanted)


@pytest.mark.parametrize(
    ("level", "item", "levels"),
    [
        ("v4", 4, 8),
        ("v4", 8, 6),
        ("v3", 4, 8),
        ("v3", 8, 0),
        ("v2", 4, 0),
        ("v2", 8, 0),
    ],
)
def test_levels_a_target_searches(level: str, item: int, levels: int) -> None:
    dtype = np.dtype(f"f{item}")
    assert Registers.of(Target.x86_64(level), dtype).levels == levels


def test_code_does_not_grow_with_the_block() -> None:
    made = counted((3, 20))
    target = Target.x86_64("v4")
    few, many = (
        len(emitted(made, sliced(n), target)[0].splitlines()) for n in (2048, 65536)
    )
    assert many < 1.1 * few
