/* Reads lines of ${width} ${what} with ${between} between,
 * prints predictions. Empty numbers are missing; ${first} first line, of names, is skipped.
 * ${build}
 * Check: ./example --check < check.csv */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "${name}.h"
#define N_WANTED ${wanted} /* results in a line of check.csv */
${reads}

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
  static char line[${cell} * (${width} + N_WANTED) + 4096];
  static double row[${width} + N_WANTED];
  ${out} out[${columns}];
  int checks = argc > 1 && !strcmp(argv[1], "--check"), rows = 0, differing = 0;
  int most = checks ? ${width} + N_WANTED : ${width};
  ${name}_model *model;
  int code = ${name}_open(1, &model);
  for (int at = 1; !code && fgets(line, sizeof line, stdin); at++) {
    int n = strchr(line, '\n') || feof(stdin) ? read_row(line, row, most) : -1;
    if (n == 0 || (at == 1 && ${skips})) continue;
    if (n != most) {
      fprintf(stderr, "line %d does not have %d ${what}\n", at, most);
      return 1;
    }
    rows++;
    if (checks) {
      code = check_row(model, row, &differing);
      continue;
    }
    code = ${name}_${function}_${given}(model, ${row}, 1, ${upper}_N_FEATURES, 1, out);
    for (int k = 0; !code && k < ${columns}; k++)
      printf("${form}%c", ${cast}out[k], k + 1 < ${columns} ? ' ' : '\n');
  }
  if (code) fprintf(stderr, "%s\n", ${name}_error(code));
  if (checks && !code) printf("%d of %d rows differ\n", differing, rows);
  ${name}_close(model);
  return checks && !code ? differing > 0 || rows == 0 : code;
}
