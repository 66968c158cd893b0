"""The three intermediate representations: their nodes, printers and verifiers."""
