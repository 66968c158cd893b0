"""How many units of the machine's work each count of a forest takes.

By kind of schedule and term. Written by benchmarks/fit_costs.py from times of 12,510
schedules of 58 forests on
cpu emeraldrapids, 512-bit vectors, 2 cores and
cpu x86-64-v3, 256-bit vectors, 2 cores.
The units are those of ``MachineProfile``; ``terms.py`` has the counts. ``SPREAD`` is
the factor within which nine of ten estimates lie.
"""

COEFFICIENTS = {
    "bitsliced": {
        "block": 267.9,
        "column": 0.5823,
        "compare": 0.6156,
        "far_line": 1.998,
        "folded": 2.085,
        "group": 23.69,
        "job": 164.8,
        "level": 1.025,
        "line": 2.219,
        "listed": 7.069,
        "load": 2.871,
        "look_up": 1.042,
        "page": 0.2116,
        "row": 5.42,
        "scratch": 15.03,
        "set": 4.817,
        "set_table": 1.782,
    },
    "lanes": {
        "call": 159.5,
        "constant": 0.1329,
        "hop_wait": 0.261,
        "leaf": 0.9374,
        "leaf_wait": 0.1946,
        "row": 112.1,
        "search": 0.3527,
        "set": 0.4544,
        "test": 0.1677,
        "tree": 1.379,
        "value": 1.073,
    },
    "rows": {
        "checked_hop": 2.726,
        "exit": 14.58,
        "fetch": 4.319,
        "hop": 10.96,
        "leaf": 17.27,
        "unforeseen": 15.51,
        "value": 3.733,
        "wait": 0.9682,
    },
    "tile-row": {
        "narrow_tree": 95.78,
        "row": 195.2,
        "search": 7.731,
        "tile": 6.329,
        "top": 0.9748,
        "tree": 230.7,
        "value": 1.18,
        "wait": 4.91,
    },
    "tiles": {
        "block": 115.0,
        "column": 2.552,
        "far_level": 0.7161,
        "fetch": 5.857,
        "leaf": 0.3863,
        "level": 0.3309,
        "narrow_tree": 2.653,
        "tile": 9.438,
        "tree": 9.34,
        "value": 23.51,
    },
    "trees": {
        "call": 25.31,
        "checked_hop": 20.47,
        "exit": 8.363,
        "fetch": 1.73,
        "hop": 10.93,
        "leaf": 16.68,
        "unforeseen": 9.267,
        "wait": 1.188,
    },
    "values": {
        "block": 324.1,
        "column": 3.787,
        "fetch": 3.809,
        "gather": 13.04,
        "leaf": 11.04,
        "tile": 1.873,
        "tree": 8.052,
        "value": 5.196,
    },
}

SPREAD = {
    "bitsliced": 1.5,
    "lanes": 1.32,
    "rows": 1.58,
    "tile-row": 1.34,
    "tiles": 1.35,
    "trees": 1.55,
    "values": 1.51,
}
