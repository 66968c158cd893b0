"""HIR: trees, node tiles and predicates."""
