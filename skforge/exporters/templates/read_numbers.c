#define BLANKS " \t\r\n\xef\xbb\xbf"

/* Returns how many cells a line has, or -1 if one of them is not a number. */
static int read_row(const char *at, double *row, int most) {
  int n = 0;
  at += strspn(at, BLANKS);
  while (*at || n) {
    char *end;
    double value = strtod(at, &end);
    if (n == most) return -1;
    row[n++] = end == at ? (double)NAN : value;
    if (end == at && *at && *at != ',') return -1;
    end += strspn(end, BLANKS);
    if (!*end) break;
    at = *end == ',' ? end + 1 + strspn(end + 1, BLANKS) : end;
  }
  return n;
}
