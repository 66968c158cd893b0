/* Times one system's calls, or writes its answers: see export_systems.py.
 *
 * usage: driver rows.bin N_ROWS answers FILE      whole rows at once
 *        driver rows.bin N_ROWS time BATCH SAMPLES SECONDS
 *
 * Each sample is as many calls as fill SECONDS; calls go through the rows, so that
 * nobody learns one row by heart. Printed are seconds of the process's own CPU time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int system_open(void);
int system_predict(const ROW *rows, int64_t n, OUT *out);

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc < 5) return 100;
  int64_t many = atoll(argv[2]);
  ROW *rows = malloc((size_t)many * N_FEATURES * sizeof *rows);
  OUT *out = malloc((size_t)many * N_OUTPUTS * sizeof *out);
  FILE *file = fopen(argv[1], "rb");
  if (!file || !rows || !out) return 101;
  size_t values = (size_t)many * N_FEATURES;
  if (fread(rows, sizeof *rows, values, file) != values) return 102;
  fclose(file);
  if (system_open()) return 103;
  if (!strcmp(argv[3], "answers")) {
    if (system_predict(rows, many, out)) return 104;
    file = fopen(argv[4], "wb");
    fwrite(out, sizeof *out, (size_t)many * N_OUTPUTS, file);
    return fclose(file);
  }
  int64_t batch = atoll(argv[4]), first = 0, calls = 1;
  double seconds = atof(argv[6]);
  for (int sample = -1; sample < atoi(argv[5]); sample++) {
    double start = now(), took;
    for (int64_t k = 0;;) {
      for (int64_t end = k + calls; k < end; k++) {
        if (first + batch > many) first = 0;
        if (system_predict(rows + first * N_FEATURES, batch, out)) return 105;
        first += batch;
      }
      took = now() - start;
      if (sample >= 0 || took > seconds) {
        if (sample >= 0) printf("%.6e\n", took / (double)k);
        else calls = (int64_t)((double)k * seconds / took) + 1;  /* warm-up */
        break;
      }
    }
  }
  return 0;
}
