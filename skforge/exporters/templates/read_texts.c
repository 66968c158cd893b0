
static float encoded[${upper}_N_FEATURES];

/* Encodes the cells of a line. A text with commas or quotes is in quotes, with two for
 * each of its own; none has line ends. Returns how many cells there are, or -1 if one
 * of them is not what its column has. */
static int read_row(char *at, double *row, int most) {
  static const int is_category[] = {${flags}};
  static float numbers[${upper}_N_COLUMNS];
  const char *texts[${upper}_N_CATEGORIES] = {0};
  int n = 0, n_texts = 0;
  at[strcspn(at, "\r\n")] = 0;
  if (!*at) return 0;
  for (int more = 1; more; at++) {
    char *cell = at, *to = at, *end;
    int quoted = *at == '"', open = quoted;
    if (quoted) at++;
    while (*at && (quoted || *at != ',')) {
      if (quoted && *at == '"' && *++at != '"') {
        open = 0;
        break;
      }
      *to++ = *at++;
    }
    more = *at == ',';
    if (n == most || open || (*at && !more)) return -1;
    *to = 0;
    if (n < ${upper}_N_COLUMNS && is_category[n]) {
      texts[n_texts++] = cell;
    } else {
      row[n] = strtod(cell, &end);
      if (end[strspn(end, " \t")]) return -1;
      if (end == cell) row[n] = (double)NAN;
      if (n < ${upper}_N_COLUMNS) numbers[n] = (float)row[n];
    }
    n++;
  }
  return ${name}_encode(1, numbers, texts, encoded) ? -1 : n;
}
