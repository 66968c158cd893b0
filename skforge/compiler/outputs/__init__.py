"""From raw scores to what the source library returns."""
