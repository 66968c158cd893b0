"""From the values of features to bins.

The thresholds of a feature cut its values into bins. The code of a value is the number
of its bin: how many thresholds it passes. The table of bins is
``skforge.compiler.forest.bins``; ``rules.py`` has the rule for missing values. The same
codes are written by columns with rows in lanes (``block.py``), and by rows with columns
in lanes: ``row_gather.py`` searches any thresholds, and those of one column on a GPU;
``row_blocks.py`` short columns and ``buckets.py`` long ones. ``category_rows.py`` looks
categories up.
"""
