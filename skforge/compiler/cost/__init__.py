"""What schedules cost on a CPU: counts of a forest's code, times a machine's speed."""
