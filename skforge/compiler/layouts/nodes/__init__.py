"""Layouts that keep a record per node."""
