"""Schedules where the user gives none."""
