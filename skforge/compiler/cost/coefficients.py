"""How many units of the machine's work each count of a forest takes.

By kind of schedule and term. Written by benchmarks/fit_costs.py from times of 9,738
schedules of 58 forests on
cpu emeraldrapids, 512-bit vectors, 2 cores and
cpu x86-64-v3, 256-bit vectors, 2 cores.
The units are those of ``MachineProfile``; ``terms.py`` has the counts. ``SPREAD`` is
the factor within which nine of ten estimates lie.
"""

COEFFICIENTS = {
    "bitsliced": {
        "column": 0.3157,
        "compare": 0.3885,
        "constant": 0.5123,
        "far_line": 3.105,
        "folded": 0.8152,
        "group": 16.83,
        "job": 231.9,
        "level": 0.9686,
        "line": 3.004,
        "listed": 7.206,
        "load": 2.482,
        "look_up": 3.942,
        "page": 1.0,
        "row": 4.737,
        "scratch": 16.43,
        "set": 4.452,
        "set_table": 2.39,
    },
    "lanes": {
        "call": 97.48,
        "constant": 0.1979,
        "hop_wait": 0.2641,
        "leaf": 0.5834,
        "leaf_wait": 0.1732,
        "row": 90.14,
        "search": 0.3596,
        "set": 1.488,
        "test": 0.1511,
        "tree": 2.179,
        "value": 0.733,
    },
    "rows": {
        "checked_hop": 19.2,
        "fetch": 6.049,
        "hop": 8.365,
        "leaf": 30.0,
        "set": 83.44,
        "value": 2.299,
        "wait": 0.8809,
    },
    "tile-row": {
        "narrow_tile": 0.4655,
        "narrow_tree": 94.31,
        "row": 85.76,
        "search": 7.381,
        "tile": 6.001,
        "top": 0.6172,
        "tree": 248.0,
        "value": 1.33,
        "wait": 7.479,
    },
    "tiles": {
        "block": 60.89,
        "column": 1.89,
        "far_level": 7.617,
        "fetch": 5.762,
        "gather": 1.31,
        "level": 0.4723,
        "narrow_tree": 1.513,
        "tile": 8.991,
        "tree": 9.894,
        "value": 21.04,
    },
    "trees": {
        "call": 8.63,
        "checked_hop": 36.01,
        "fetch": 5.981,
        "hop": 10.16,
        "leaf": 12.3,
        "wait": 1.25,
    },
    "values": {
        "block": 241.0,
        "column": 3.117,
        "fetch": 2.451,
        "gather": 15.08,
        "leaf": 14.91,
        "tree": 6.626,
        "value": 6.195,
    },
}

SPREAD = {
    "bitsliced": 1.69,
    "lanes": 1.47,
    "rows": 2.41,
    "tile-row": 1.56,
    "tiles": 1.54,
    "trees": 1.93,
    "values": 2.16,
}
