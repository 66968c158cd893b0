"""Trees as bit logic over the bit vectors of shared predicates.

The bit vector of a predicate has a bit for each row of a block, set where the row goes
right; here it is a *line* of a table. Testing each distinct predicate of a forest once
and combining trees from bit vectors is due to QuickScorer (Lucchese et al., SIGIR 2015)
and RapidScorer (Ye et al., KDD 2018), whose vectors have a bit for each leaf.

CPUs and GPUs share the plan of the columns of predicates (``predicate_table.py``) and
that of the trees (``sliced_layout.py``, ``encode_trees.py``).
"""
