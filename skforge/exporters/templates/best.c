int place = 0;
${each}
    if (!(sums[k] <= sums[place]) && sums[place] == sums[place])
      place = k;
out[0] = ${place};
