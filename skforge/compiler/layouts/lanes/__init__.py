"""One row through many trees at once, a tree per SIMD lane."""
