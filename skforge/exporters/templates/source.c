/* ${name}: a model as portable C99. Made by skforge ${release}. */
#include "${name}.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "compile without -ffast-math, for floats that are computed as floats"
#endif

typedef ${row} ROW;
typedef ${total} SUM;

/* The words of the functions that finish a row. */
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;
typedef double f64;

#define SKF_LOOP
#define SKF_UNROLL
#define skf_add(a, b) ((a) + (b))
#define skf_sub(a, b) ((a) - (b))
#define skf_mul(a, b) ((a) * (b))

static inline u32 SKF_F32_BITS(f32 x) { u32 u; memcpy(&u, &x, sizeof u); return u; }
static inline u64 SKF_F64_BITS(f64 x) { u64 u; memcpy(&u, &x, sizeof u); return u; }
static inline f32 SKF_BITS_F32(u32 u) { f32 x; memcpy(&x, &u, sizeof x); return x; }
static inline f64 SKF_BITS_F64(u64 u) { f64 x; memcpy(&x, &u, sizeof x); return x; }

#define ZERO ${zero}
#define ZERO_IS_MISSING ${zero_is_missing}
#define KIND(test) ${kind}
#define CATEGORIES ${categories}
#define IS_CATEGORY(x) (x ${above})

${tables}
#if CATEGORIES
static int in_set(int32_t test, ROW x) {
  int64_t begin = set_begin[test];
  ROW end = (ROW)(32 * (set_begin[test + 1] - begin));
  if (!(IS_CATEGORY(x) && x < end)) return 0;
  int64_t category = (int64_t)x;
  return (int)(set_word[begin + category / 32] >> (category % 32) & 1);
}
#endif

static int goes_left(int32_t test, ROW x) {
  int missing = test_missing[test] & 3;
  int is_nan = x != x;
  if ((is_nan && missing != 1) ||
      (ZERO_IS_MISSING && missing == 2 && x <= ZERO && x >= -ZERO))
    return test_missing[test] >> 2;
  if (is_nan) x = 0;
  switch (KIND(test)) {
    case 0: return x < threshold[test];
    case 1: return x <= threshold[test];
    case 2: return x > threshold[test];
    case 3: return x >= threshold[test];
    case 4: return x == threshold[test];
    case 5: return x != threshold[test];
#if CATEGORIES
    case 6: return in_set(test, x);
    case 7: return !in_set(test, x);
    case 8: return in_set(test, x) && x == (ROW)(int64_t)x;
#endif
    default: return 0;
  }
}

${walks}
${finishes}
struct ${name}_model {
  int unused;
};

int ${name}_open(int threads, ${name}_model **model) {
  static ${name}_model only;
  if (!model) return 1;
  *model = 0;
  if (threads < 0) return 2;
  *model = &only;
  return 0;
}

void ${name}_close(${name}_model *model) { (void)model; }

int ${name}_variant(const ${name}_model *model) { return model ? 0 : -1; }

const char *${name}_variant_name(int variant) {
  return variant == 0 ? "${cpu}" : "unknown";
}

int ${name}_select(${name}_model *model, int variant) {
  return !model ? 1 : variant == 0 ? 0 : 3;
}

${functions}
const char *${name}_version(void) { return "${release}"; }

const char *${name}_checksum(void) { return "${checksum}"; }

const char *${name}_error(int code) {
  switch (code) {
${cases}
    default: return "unknown";
  }
}
