/* Opens the model for a number of threads: sets *model to a handle, or to
 * NULL and returns an error code. It allocates ${scratch} bytes of
 * scratch for each thread. Up to that many calls at once allocate nothing;
 * each further call allocates and frees its own scratch.
 * ${name}_close frees the model. */
