"""Trees as bit logic over the bit vectors of shared predicates.

A predicate's bit vector has one bit for each row of a block, set where the row goes
right; here it is called a *line* of a table. Testing each distinct predicate of a
forest once and combining trees from bit vectors is due to QuickScorer (Lucchese et al.,
SIGIR 2015) and RapidScorer (Ye et al., KDD 2018), whose vectors have one bit for each
leaf.

CPUs and GPUs share how predicates are grouped into columns (``predicate_table.py``) and
how trees are encoded (``sliced_layout.py``; ``encode_trees.py``, ``cut_trees.py`` and
muxes where they are unbalanced).
"""
