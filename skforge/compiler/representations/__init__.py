"""How the nodes of a forest are laid out in memory, one module a layout."""
