"""Runs the source text of GPU kernels on the CPU, compiled by g++."""
