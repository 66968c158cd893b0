"""What layouts share that pass a block of rows through one tree after another."""
