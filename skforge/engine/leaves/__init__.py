"""What the leaves of a row hold beside a value: weighted sums, and samples."""
