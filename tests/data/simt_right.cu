// A kernel that is right. Blocks are of 64 threads.
typedef unsigned int u32;
typedef int i32;
typedef long long i64;

// out[b] = the sum of 64 numbers, a tree in shared memory.
SKF_KERNEL(64) tree_sum(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  const u32 t = SKF_TID_X;
  part[t] = x[SKF_BID_X * 64u + t];
  for (u32 s = 32; s; s >>= 1) {
    SKF_BARRIER();
    if (t < s) part[t] += part[t + s];
  }
  if (t == 0) out[SKF_BID_X] = part[0];
}
