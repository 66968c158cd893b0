"""From feature values to bin codes."""
