int ${name}_${function}_${given}(const ${name}_model *model, const ${c_type} *rows,
    int64_t n_rows, int64_t row_stride, int64_t column_stride, ${out} *out) {
  if (!model) return 1;
  if (n_rows < 0) return 2;
  if (n_rows == 0) return 0;
  if (!rows || !out) return 1;
  for (int64_t i = 0; i < n_rows; i++) {
    const ${c_type} *row = rows + i * row_stride;
${body}
  }
  return 0;
}
