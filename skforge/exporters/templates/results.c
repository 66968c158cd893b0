    SUM sums[${n_outputs}];
    sum_${given}(row, column_stride, sums);
    finish_${function}(sums, out + i * ${columns});
