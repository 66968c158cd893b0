"""The code that follows rows down trees in groups; :mod:`.dependence` describes it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from skforge.compiler.binning.transpose import store_masks
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I32, I64, U8, Buffer, Function, Value
from skforge.compiler.ir.lir.types import Mask, Scalar, Vec

#: What is done with the rows of a set: count them, add their weights, or add the
#: changes of the set to the sums of each.
Action: TypeAlias = Literal["count", "weigh", "spread"]

#: Rows that are one set of bits: the lanes of so many words.
WORDS = 8
BITS = 64 * WORDS

SIZES = (
    *("n_rows", "group", "n_groups", "n_tasks", "groups_a_task", "n_columns"),
    *("n_trees", "n_tests", "n_sets", "most_sets", "listed", "width", "row_size"),
)
#: Names and types of the arrays, in the order of the parameters; None: as the rows.
ARRAYS: dict[str, Scalar | None] = {
    **{"values": None, "members": I64, "weights": F64},
    **{"start": I64, "divided": I32, "test": I32, "skip": I32},
    **{"start_end": I64, "end_set": I32},
    **{"column": I32, "threshold": None, "nan_left": U8},
    **{"first": I64, "cell": I64, "change": F64},
}


def function(
    action: Action, value: Scalar, less: bool, lined: bool, lanes: int
) -> Function:
    """Return the function for rows of a type; tests are < or <=.

    If ``lined``, the rows of a group are bits, and each test is a line of bits that is
    evaluated once a group. Otherwise sets are lists of the rows' numbers.
    """
    sizes = {name: Value(name, I64) for name in SIZES}
    arrays = {name: Buffer(name, kind or value) for name, kind in ARRAYS.items()}
    n_rows, group, n_groups, n_tasks, a_task, n_columns = [*sizes.values()][:6]
    n_trees, n_tests, n_sets, most_sets, listed = [*sizes.values()][6:11]
    width, row_size = sizes["width"], sizes["row_size"]
    values, members, weights, start, divided, test_of, skip = [*arrays.values()][:7]
    start_end, end_set, column, threshold, nan_left = [*arrays.values()][7:12]
    first, cell, change = [*arrays.values()][12:]
    out = Buffer("out", I64 if action == "count" else F64)
    plane, size, some = Vec(I64, WORDS), 8 * WORDS, Vec(F64, 8)
    with Builder() as b, b.parallel(n_tasks) as task:

        def add(row: Value, set_: Value, g: Value) -> None:
            if action == "weigh":
                index = task * n_sets + set_
                out[index] = out[index] + weights[g * group + row]
                return
            with b.loop(first[set_], first[set_ + 1]) as k, b.loop(width) as o:
                to = (g * row_size + cell[k] + o) * group + row
                out[to] = out[to] + change[k * width + o]

        order: Literal["lt", "le"] = "lt" if less else "le"

        def evaluate(test: Value, base: Value) -> None:
            base = base + column[test].to(I64) * group
            limit = b.splat(threshold[test], lanes)

            def write(nan_too: bool) -> None:
                x = [values[base + v, Vec(value, lanes)] for v in range(0, BITS, lanes)]
                masks = [b.compare(order, one, limit, nan_too) for one in x]
                store_masks(lines, test * size, masks)

            b.if_(nan_left[test].ne(0), lambda: write(True), lambda: write(False))

        def add_bits(set_: Value, all_sets: Value, g: Value) -> None:
            index = (task * n_sets + all_sets) * WORDS
            if action == "count":
                out[index] = out[index, plane] + b.popcount(reach[set_ * size, plane])
                return
            zero = b.const(0.0, some)

            def chosen(v: Value, number: Value) -> Value:
                mask = b.reinterpret(reach[set_ * size + v, U8], Mask(8))
                return b.select(mask, number, zero)

            if action == "weigh":
                total = [out[index, some]]
                with b.loop(size, carry=total) as v:
                    eight = weights[g * BITS + v * 8, some]
                    total[0] = total[0] + chosen(v, eight)
                out[index] = total[0]
                return
            with b.loop(first[all_sets], first[all_sets + 1]) as k, b.loop(width) as o:
                by = b.splat(change[k * width + o], 8)
                to = (g * row_size + cell[k] + o) * BITS
                with b.loop(size) as v:
                    out[to + v * 8] = out[to + v * 8, some] + chosen(v, by)

        def walk_bits(g: Value, tree: Value) -> None:
            reach[0] = members[g * WORDS, plane]
            root = start[tree]
            with b.loop(root, start[tree + 1]) as k:
                rows = reach[divided[k].to(I64) * size, plane]
                line = lines[test_of[k].to(I64) * size, plane]
                to = (k - root) * (2 * size) + size
                reach[to], reach[to + size] = rows & line, rows & ~line
            with b.loop(start_end[tree], start_end[tree + 1]) as k:
                set_ = end_set[k].to(I64)
                add_bits(set_, root * 2 + tree + set_, g)

        def keep(set_: Value, begin: Value, many: Value, sets: Value, g: Value) -> None:
            begins[set_], lengths[set_] = begin, many
            all_sets = sets + set_
            if action == "count":
                index = task * n_sets + all_sets
                out[index] = out[index] + many
                return
            has_leaves = first[all_sets + 1] > first[all_sets]
            with b.loop(begin, b.select(has_leaves, begin + many, begin)) as k:
                add(numbers[k].to(I64), all_sets, g)

        def walk_lists(g: Value, tree: Value) -> None:
            """Divide lists; both parts of one are behind it, the left one last."""
            root = start[tree]
            sets, base = root * 2 + tree, g * group
            keep(b.const(0), b.const(0), (n_rows - base).min(group), sets, g)
            division = [root]
            with b.repeat(lambda: division[0] < start[tree + 1], division):
                k = division[0]
                set_ = divided[k].to(I64)
                begin, many = begins[set_], lengths[set_]
                with b.when(many > 0):
                    end, behind = begin + many, begin + many + many
                    test = test_of[k].to(I64)
                    x_at = base * n_columns + column[test].to(I64) * group
                    limit, with_nan = threshold[test], nan_left[test].ne(0)
                    ends = [end, behind]
                    with b.loop(begin, end, carry=ends) as i:
                        row = numbers[i]
                        x = values[x_at + row.to(I64)]
                        goes = b.compare(order, x, limit) | b.is_nan(x) & with_nan
                        numbers[ends[0]], numbers[ends[1] + -1] = row, row
                        step = goes.to(I64)
                        ends[:] = ends[0] + 1 - step, ends[1] - step
                    to, cut = (k - root) * 2 + 1, ends[0]
                    keep(to + 1, end, cut - end, sets, g)
                    keep(to, cut, behind - cut, sets, g)
                division[0] = b.select(many > 0, k + 1, skip[k].to(I64))

        if lined:
            lines = b.alloc("lines", U8, n_tests * size)
            reach = b.alloc("reach", U8, most_sets * size)
        else:
            begins, lengths = (
                b.alloc(n, I64, most_sets) for n in ("begins", "lengths")
            )
            numbers = b.alloc("numbers", I32, listed)
            with b.loop(group) as k:
                numbers[k] = k.to(I32)
        groups = task * a_task
        with b.loop(groups, (groups + a_task).min(n_groups)) as g:
            if lined:
                with b.loop(n_tests) as test:
                    evaluate(test, g * group * n_columns)
            with b.loop(n_trees) as tree:
                (walk_bits if lined else walk_lists)(g, tree)
    return Function(
        f"skf_{action}", (*sizes.values(), *arrays.values(), out), b.finish()
    )
