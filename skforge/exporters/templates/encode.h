
/* Makes rows of ${upper}_N_FEATURES values, as the other functions read
 * them, of rows with categories. numbers has n_rows * ${upper}_N_COLUMNS values,
 * of which those of categories are ignored; texts has
 * n_rows * ${upper}_N_CATEGORIES texts in UTF-8 that end with 0, in the order of
 * the columns. A whole number is the text of its decimal digits, true is "1" and
 * false "0". No text may be NULL: a category is never missing.
 * rows may not overlap numbers. */
int ${name}_encode(int64_t n_rows, const float *numbers, const char *const *texts,
    float *rows);
