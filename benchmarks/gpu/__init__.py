"""Benchmarks of GPU targets: ``python -m benchmarks.gpu``."""
