"""Artifacts: models on disk without pickles."""
