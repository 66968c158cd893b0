"""The learned cost model and the features it reads."""
