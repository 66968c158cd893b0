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
        "column": 0.5836,
        "compare": 0.5173,
        "constant": 0.7312,
        "far_line": 2.015,
        "folded": 1.838,
        "group": 21.96,
        "job": 204.9,
        "level": 0.9702,
        "line": 2.579,
        "listed": 7.152,
        "load": 2.943,
        "look_up": 0.3452,
        "page": 0.143,
        "row": 5.667,
        "scratch": 10.55,
        "set": 4.606,
        "set_table": 1.854,
    },
    "lanes": {
        "call": 79.13,
        "constant": 0.0837,
        "hop": 0.4243,
        "hop_wait": 0.2433,
        "leaf": 1.59,
        "leaf_wait": 0.1904,
        "row": 131.3,
        "search": 0.3452,
        "set": 0.437,
        "test": 0.1743,
        "tree": 0.5196,
        "value": 1.028,
    },
    "rows": {
        "checked_hop": 19.87,
        "exit": 4.134,
        "fetch": 3.741,
        "hop": 11.08,
        "leaf": 19.85,
        "value": 3.61,
        "wait": 0.8856,
    },
    "tile-row": {
        "narrow_tree": 87.96,
        "row": 205.9,
        "search": 6.568,
        "tile": 6.524,
        "top": 1.013,
        "tree": 223.0,
        "value": 1.305,
        "wait": 5.908,
    },
    "tiles": {
        "block": 150.0,
        "column": 3.548,
        "far_level": 0.2947,
        "fetch": 5.622,
        "leaf": 1.269,
        "level": 0.1352,
        "narrow_tile": 0.08315,
        "narrow_tree": 2.765,
        "tile": 9.516,
        "tree": 8.733,
        "value": 23.0,
    },
    "trees": {
        "checked_hop": 32.49,
        "exit": 0.227,
        "fetch": 2.577,
        "hop": 11.12,
        "leaf": 17.52,
        "wait": 1.088,
    },
    "values": {
        "block": 343.2,
        "column": 4.76,
        "fetch": 3.945,
        "gather": 11.29,
        "leaf": 12.14,
        "tile": 3.461,
        "tree": 7.271,
        "value": 4.202,
    },
}

SPREAD = {
    "bitsliced": 1.64,
    "lanes": 1.44,
    "rows": 1.94,
    "tile-row": 1.51,
    "tiles": 1.54,
    "trees": 1.8,
    "values": 1.7,
}
