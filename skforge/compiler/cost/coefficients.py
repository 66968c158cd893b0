"""How many units of the machine's work each count of a forest takes.

By kind of schedule and term. Written by benchmarks/fit_costs.py from times of 24,981
schedules of 109 forests on
cpu emeraldrapids, 512-bit vectors, 1 core and
cpu x86-64-v3, 256-bit vectors, 1 core.
The units are those of ``MachineProfile``; ``estimate.py`` has the counts.
Nine of ten estimates lie within a factor: bitsliced 1.7, lanes 1.41, rows 1.68,
tile-row 1.26, tiles 1.42, trees 1.56, values 1.45. Pieces were fitted later, to 84
times of 7 forests beside those of tiles, on cpu znver3, 256-bit vectors: 1.4.
"""

COEFFICIENTS = {
    "bitsliced": {
        "block": 627.3, "column": 0.7933, "compare": 0.8255, "constant": 0.6412,
        "far_line": 1.539, "folded": 2.016, "group": 24.66, "job": 167.5,
        "level": 1.022, "line": 1.459, "listed": 6.987, "load": 1.791, "look_up": 2.268,
        "page": 0.4811, "row": 2.672, "scratch": 14.17, "set": 3.676,
        "set_table": 1.474,
    },
    "lanes": {
        "call": 152.7, "constant": 0.2681, "hop": 7.612, "hop_wait": 0.1244,
        "leaf": 10.71, "row": 60.87, "search": 0.2777, "set": 0.2262, "set_hop": 7.354,
        "test": 0.1334, "value": 0.6887,
    },
    "pieces": {
        "bucket": 7.704, "column": 8.972, "far_level": 2.459, "fetch": 1.191,
        "leaf": 23.09, "level": 1.142, "piece": 20.5, "test": 2.727,
        "transpose": 31.81, "value": 3.621,
    },
    "rows": {
        "checked_hop": 16.72, "exit": 3.874, "fetch": 5.471, "hop": 11.48,
        "missing": 11.18, "unforeseen": 2.272, "value": 1.181, "value_wait": 0.2604,
        "wait_alone": 0.5693, "walk": 6.73,
    },
    "tile-row": {
        "narrow_tree": 61.57, "row": 632.0, "search": 6.37, "tile": 8.783,
        "top": 0.9498, "tree": 228.4, "wait": 1.418,
    },
    "tiles": {
        "block": 179.3, "column": 8.972, "far_level": 2.459, "fetch": 4.89,
        "leaf_fetch": 6.186, "level": 1.142, "narrow_tile": 2.475, "narrow_tree": 3.811,
        "row": 6.641, "tile": 0.8542, "tree": 8.036, "value": 3.621,
    },
    "trees": {
        "call": 38.69, "checked_hop": 16.14, "exit": 8.699, "hop": 8.387, "leaf": 2.528,
        "missing": 11.48, "value": 2.758, "wait": 0.8681, "wait_alone": 0.5807,
    },
    "values": {
        "block": 153.8, "call": 491.9, "column": 4.697, "fetch": 2.877, "gather": 7.741,
        "leaf": 67.85, "leaf_fetch": 2.893, "missing": 8.454, "row": 4.854,
        "tree": 0.6204, "value": 0.1367,
    },
}  # fmt: skip
