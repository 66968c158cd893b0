"""Users' rows: containers, their columns and forms, and readers that make numbers."""
