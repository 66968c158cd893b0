"""Default schedules, for users who give none."""
