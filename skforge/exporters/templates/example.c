/* Reads lines of ${width} numbers with commas or blanks between,
 * prints predictions. Empty cells are missing; a first line of names is skipped.
 * ${build}
 * Check: ./example --check < check.csv */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "${name}.h"
#define BLANKS " \t\r\n\xef\xbb\xbf"
#define N_WANTED ${wanted} /* results in a line of check.csv */

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

/* Compares bits; another C library may round exponentials otherwise. */
static int differs(const char *function, double found, double wanted, double limit,
                   double share) {
  if (!memcmp(&found, &wanted, sizeof found) || (isnan(found) && isnan(wanted)) ||
      fabs(found - wanted) < limit + share * fabs(wanted))
    return 0;
  fprintf(stderr, "%s returns %.17g, and the model %.17g\n", function, found, wanted);
  return 1;
}

/* Compares what the functions return for a row of check.csv with its other cells. */
static int check_row(${name}_model *model, const double *row, int *differing) {
  const double *wanted = row + ${width};
  int code = 0, bad = 0;
${compared}
  *differing += bad > 0;
  return code;
}

int main(int argc, char **argv) {
  static char line[64 * (${width} + N_WANTED) + 4096];
  static double row[${width} + N_WANTED];
  ${out} out[${columns}];
  int checks = argc > 1 && !strcmp(argv[1], "--check"), rows = 0, differing = 0;
  int most = checks ? ${width} + N_WANTED : ${width};
  ${name}_model *model;
  int code = ${name}_open(1, &model);
  for (int at = 1; !code && fgets(line, sizeof line, stdin); at++) {
    int n = strchr(line, '\n') || feof(stdin) ? read_row(line, row, most) : -1;
    if (n == 0 || (at == 1 && (checks || n < 0))) continue;
    if (n != most) {
      fprintf(stderr, "line %d does not have %d numbers\n", at, most);
      return 1;
    }
    rows++;
    if (checks) {
      code = check_row(model, row, &differing);
      continue;
    }
    code = ${name}_${function}_f64(model, row, 1, ${width}, 1, out);
    for (int k = 0; !code && k < ${columns}; k++)
      printf("${form}%c", ${cast}out[k], k + 1 < ${columns} ? ' ' : '\n');
  }
  if (code) fprintf(stderr, "%s\n", ${name}_error(code));
  if (checks && !code) printf("%d of %d rows differ\n", differing, rows);
  ${name}_close(model);
  return checks && !code ? differing > 0 || rows == 0 : code;
}
