"""Search strategies and the session that runs them."""
