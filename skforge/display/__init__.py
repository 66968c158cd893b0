"""What users see of a ``CompiledForest``: summary, card, diagram, plots and repr."""
