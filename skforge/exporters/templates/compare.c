  {
    ${out} out[${columns}];
    code = code ? code : ${name}_${function}_${given}(model, ${row}, 1, ${upper}_N_FEATURES, 1, out);
    for (int k = 0; !code && k < ${columns}; k++)
      bad += differs("${function}", (double)out[k], *wanted++, ${limit}, ${share});
  }
