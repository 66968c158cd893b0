"""Trees as bit logic over shared predicates."""
