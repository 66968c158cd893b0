/* Opens the model: sets *model to a handle, or to NULL and returns a
 * code. The number of threads does not matter: calls need no memory. */
