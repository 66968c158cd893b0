/* Reads lines of ${width} numbers with commas or blanks between,
 * prints predictions. Empty cells are missing; a first line of names is skipped.
 * ${build} */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "${name}.h"
#define BLANKS " \t\r\n\xef\xbb\xbf"

/* Returns how many cells a line has, or -1 if one of them is not a number. */
static int read_row(const char *at, double *row) {
  int n = 0;
  at += strspn(at, BLANKS);
  while (*at || n) {
    char *end;
    double value = strtod(at, &end);
    if (n == ${width}) return -1;
    row[n++] = end == at ? (double)NAN : value;
    if (end == at && *at && *at != ',') return -1;
    end += strspn(end, BLANKS);
    if (!*end) break;
    at = *end == ',' ? end + 1 + strspn(end + 1, BLANKS) : end;
  }
  return n;
}

int main(void) {
  static char line[64 * ${width} + 4096];
  double row[${width} + 1];
  ${out} out[${columns}];
  ${name}_model *model;
  int code = ${name}_open(1, &model);
  for (int at = 1; !code && fgets(line, sizeof line, stdin); at++) {
    int n = strchr(line, '\n') || feof(stdin) ? read_row(line, row) : -1;
    if (n == 0 || (n < 0 && at == 1)) continue;
    if (n != ${width}) {
      fprintf(stderr, "line %d does not have %d numbers\n", at, ${width});
      return 1;
    }
    code = ${name}_${function}_f64(model, row, 1, ${width}, 1, out);
    for (int k = 0; !code && k < ${columns}; k++)
      printf("${form}%c", ${cast}out[k], k + 1 < ${columns} ? ' ' : '\n');
  }
  if (code) fprintf(stderr, "%s\n", ${name}_error(code));
  ${name}_close(model);
  return code;
}
