"""How many units of the machine's work each count of a forest takes.

By kind of schedule and term. Written by benchmarks/fit_costs.py from times of 7,357
schedules of 50 forests on
cpu emeraldrapids, 512-bit vectors, 2 cores and
cpu x86-64-v3, 256-bit vectors, 2 cores.
The units are those of ``MachineProfile``; ``terms.py`` has the counts. ``SPREAD`` is
the factor within which nine of ten estimates lie.
"""

COEFFICIENTS = {
    "bitsliced": {
        "block": 818.5,
        "column": 0.4749,
        "compare": 0.3359,
        "constant": 0.7885,
        "far_line": 3.161,
        "folded": 0.8143,
        "group": 14.95,
        "job": 227.9,
        "level": 0.9511,
        "line": 2.799,
        "listed": 7.146,
        "load": 2.687,
        "look_up": 3.772,
        "page": 0.8263,
        "row": 5.613,
        "scratch": 18.12,
        "set": 4.384,
        "set_table": 2.303,
    },
    "lanes": {
        "call": 72.7,
        "constant": 0.213,
        "hop_wait": 0.2284,
        "leaf": 0.9205,
        "leaf_wait": 0.1415,
        "row": 121.2,
        "search": 0.3494,
        "set": 0.8946,
        "test": 0.1513,
        "tree": 0.8166,
    },
    "rows": {
        "checked_hop": 31.38,
        "fetch": 7.513,
        "hop": 9.969,
        "hop_alone": 0.3316,
        "leaf": 4.805,
        "set": 82.32,
        "value": 13.69,
        "walk": 19.57,
    },
    "tile-row": {
        "narrow_tile": 0.4285,
        "narrow_tree": 115.8,
        "search": 3.145,
        "tile": 7.026,
        "top": 2.774,
        "tree": 197.6,
        "value": 78.43,
        "wait": 6.67,
    },
    "tiles": {
        "block": 164.8,
        "fetch": 6.382,
        "gather": 3.108,
        "leaf": 0.2961,
        "level": 0.6324,
        "narrow_tree": 3.142,
        "tile": 8.493,
        "tree": 8.304,
        "value": 25.76,
    },
    "trees": {
        "call": 49.99,
        "checked_hop": 39.08,
        "fetch": 1.223,
        "hop": 2.726,
        "leaf": 12.26,
        "row": 176.5,
        "value": 7.265,
        "wait": 1.977,
    },
    "values": {
        "block": 333.5,
        "fetch": 6.403,
        "gather": 19.13,
        "leaf": 0.9987,
        "tree": 7.656,
        "value": 18.26,
    },
}

SPREAD = {
    "bitsliced": 1.67,
    "lanes": 1.47,
    "rows": 1.83,
    "tile-row": 1.48,
    "tiles": 1.66,
    "trees": 1.74,
    "values": 1.72,
}
