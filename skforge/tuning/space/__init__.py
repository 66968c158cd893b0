"""Which schedules a search may try."""
