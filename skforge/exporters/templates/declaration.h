int ${name}_${function}_${given}(const ${name}_model *model, const ${c_type} *rows,
    int64_t n_rows, int64_t row_stride, int64_t column_stride, ${out} *out);
