"""What explains predictions: contributions of features, and partial dependence."""
