/* Times one system's calls, or writes its answers: see export_systems.py.
 *
 * usage: driver rows.bin N_ROWS answers FILE      whole rows at once
 *        driver rows.bin N_ROWS time BATCH SAMPLES SECONDS
 *        driver rows.bin N_ROWS calls FILE BATCH CALLS SECONDS EVICT
 *
 * Calls go through the rows, so that nobody learns one row by heart. "time": each sample
 * is as many calls as fill SECONDS; printed are seconds of the process's own CPU time.
 * "calls": each call is timed by itself, until there are CALLS or they took SECONDS; EVICT
 * bytes are read before each. Written are int64 nanoseconds: the clock's own, then one a
 * call. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM 64 /* calls before the first that counts */

int system_open(void);
int system_predict(const ROW *rows, int64_t n, OUT *out);

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static int64_t nanoseconds(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Returns the median of what is measured around nothing. */
static int64_t clock_itself(void) {
  static int64_t taken[20001];
  for (int k = 0; k < 20001; k++) {
    int64_t start = nanoseconds();
    taken[k] = nanoseconds() - start;
  }
  qsort(taken, 20001, sizeof *taken, by_value);
  return taken[10000];
}

static int time_calls(const ROW *rows, int64_t many, OUT *out, char **argv) {
  int64_t batch = atoll(argv[5]), calls = atoll(argv[6]), first = 0, spent = 0;
  int64_t limit = (int64_t)(atof(argv[7]) * 1e9), evict = atoll(argv[8]) / 8;
  int64_t *taken = malloc((size_t)(calls + 1) * sizeof *taken), done = 0;
  int64_t *buffer = malloc((size_t)(evict + 1) * sizeof *buffer);
  volatile int64_t sum = 0;
  if (!taken || !buffer) return 101;
  for (int64_t k = 0; k < evict; k++) buffer[k] = k;  /* pages of its own */
  taken[0] = clock_itself();
  for (int64_t k = -WARM; k < calls && spent < limit; k++) {
    if (first + batch > many) first = 0;
    if (evict) {
      int64_t read = 0;
      for (int64_t i = 0; i < evict; i++) read += buffer[i];
      sum = sum + read;
      nanoseconds();  /* the clock itself is to be found in the caches */
    }
    int64_t start = nanoseconds();
    if (system_predict(rows + first * N_FEATURES, batch, out)) return 105;
    int64_t took = nanoseconds() - start;
    first += batch;
    if (k >= 0) taken[++done] = took, spent += took;
  }
  FILE *file = fopen(argv[4], "wb");
  if (!file || fwrite(taken, sizeof *taken, (size_t)done + 1, file) != (size_t)done + 1)
    return 102;
  return fclose(file);
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
  if (!strcmp(argv[3], "calls")) return argc < 9 ? 100 : time_calls(rows, many, out, argv);
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
