static int32_t step_${given}(const ${c_type} *row, int64_t stride, int32_t at) {
  ROW x = (ROW)row[test_feature[node_test[at]] * stride];${marker}
  return node_next[2 * (int64_t)at + !goes_left(node_test[at], x)];
}

/* Several trees together, until the first is at a leaf: no hop waits for another's. */
static void walk_${given}(const ${c_type} *row, int64_t stride, int32_t tree,
                     int32_t *leaf) {
  int32_t at[${together}], seen = 0;
  int n = ${n_trees} - tree < ${together} ? ${n_trees} - tree : ${together};
  for (int k = 0; k < ${together}; k++) {
    at[k] = root[tree + (k < n ? k : n - 1)];
    seen |= at[k];
  }
  while (seen >= 0) {
    seen = 0;
    for (int k = 0; k < ${together}; k++) {
      at[k] = step_${given}(row, stride, at[k]);
      seen |= at[k];
    }
  }
  for (int k = 0; k < n; k++) {
    while (at[k] >= 0) at[k] = step_${given}(row, stride, at[k]);
    leaf[k] = ~at[k];
  }
}

static void sum_${given}(const ${c_type} *row, int64_t stride, SUM *sums) {
  int32_t leaf[${together}];
  for (int k = 0; k < ${n_outputs}; k++) sums[k] = base[k];
  for (int32_t tree = 0; tree < ${n_trees}; tree++) {
    if (tree % ${together} == 0) walk_${given}(row, stride, tree, leaf);
    const SUM *value = &leaf_value[(int64_t)${item} * ${columns}];
    if (tree_output[tree] < 0)
      for (int k = 0; k < ${columns}; k++) sums[k] += value[k];
    else
      sums[tree_output[tree]] += value[0];
  }
}
