"""What a process needs to run compiled models: the cache, the linker; no compiler."""
