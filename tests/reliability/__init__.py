"""Reliability figures: what was tried, how often, what survived and what was lost.

``python -m tests.reliability`` runs all families and writes the table; each family
is a file: ``soak``, ``faults_*``, ``profiles``, ``fuzz`` and ``sanitize``.
"""
