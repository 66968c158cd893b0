"""From a forest and a schedule to machine code."""
