/* ${name}: a model as plain C functions. Made by skforge ${release}. */
#ifndef ${upper}_H
#define ${upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${upper}_N_FEATURES ${n_features}
${columns}
/* ${name}_checksum() of the library that this header belongs to. */
#define ${upper}_CHECKSUM "${checksum}"

/* Return codes of the functions; ${name}_error(code) gives the text of one. */
enum {
${codes}
};

/* An open model. Any number of threads may use it at once. */
typedef struct ${name}_model ${name}_model;

${open}
int ${name}_open(int threads, ${name}_model **model);

/* Frees a model. Nobody may use it afterwards. NULL is allowed. */
void ${name}_close(${name}_model *model);

/* Functions read n_rows rows of ${upper}_N_FEATURES values: value c of row r
 * is rows[r * row_stride + c * column_stride]. Rows without gaps have the
 * strides ${upper}_N_FEATURES and 1, columns without gaps 1 and n_rows.
 * Missing values are NaN, unless the model marks them by another value.
 * Results are dense, row after row. */
${functions}

/* The version of skforge; a digest of the model; the text of a code. */
const char *${name}_version(void);
const char *${name}_checksum(void);
const char *${name}_error(int code);

/* The library has one variant of the code for each of these CPUs, the
 * best first. The functions return the variant that a model uses and the
 * name of a variant, and make a model use a variant
 * (${upper}_ERROR_CPU if this CPU cannot run it). */
${variants}
int ${name}_variant(const ${name}_model *model);
const char *${name}_variant_name(int variant);
int ${name}_select(${name}_model *model, int variant);

#ifdef __cplusplus
}
#endif
#endif
