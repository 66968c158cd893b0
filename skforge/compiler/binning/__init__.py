"""Maps feature values to bins.

The thresholds of a feature divide its values into bins. The code of a value is the
number of its bin: how many thresholds it passes. The table of bins is in
``skforge.forest.bins``; ``rules.py`` has the rules for missing values. Several
modules compute the same codes. ``block.py`` works by column, with rows in vector lanes.
The others work by row, with columns in lanes: ``row_gather.py`` searches any thresholds
(on a GPU one column at a time), ``row_blocks.py`` short columns, and ``buckets.py``
long ones. ``category_rows.py`` looks categories up.
"""
