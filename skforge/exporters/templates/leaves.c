    int32_t *to = out + i * ${columns}, leaf[${together}];
    for (int32_t tree = 0; tree < ${columns}; tree++) {
      if (tree % ${together} == 0) walk_${given}(row, column_stride, tree, leaf);
      to[tree] = leaf_number[leaf[tree % ${together}]];
    }
