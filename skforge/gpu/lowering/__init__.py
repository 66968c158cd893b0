"""From MIR with grids, blocks and threads to LIR."""
