"""Passes over trees."""
