SUM most = -INFINITY;
${each} most = sums[k] > most ? sums[k] : most;
double whole = 0;
${each} whole += sums[k] = ${exp}(sums[k] - most);
${each} sums[k] = sums[k] / (SUM)whole;
