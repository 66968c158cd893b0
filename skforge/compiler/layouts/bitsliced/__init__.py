"""Trees as bit logic over the bit vectors of shared predicates.

A predicate's bit vector has one bit for each row of a block, set where the row goes
right; here it is called a *line* of a table. Testing each distinct predicate of a
forest once and combining trees from bit vectors is due to QuickScorer (Lucchese et al.,
SIGIR 2015) and RapidScorer (Ye et al., KDD 2018), whose vectors have one bit for each
leaf.

``predicate_table.py`` groups predicates into columns, ``predicate_lines.py`` and
``bucket_search.py`` evaluate them, for float64 rows with ``ties.py``;
``sliced_layout.py`` encodes trees, those that are unbalanced by ``encode_trees.py`` and
``cut_trees.py``, and ``sliced_trees.py`` emits them.
"""
