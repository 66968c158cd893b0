"""From a user's rows to answers: entries, kernels, output transforms."""
