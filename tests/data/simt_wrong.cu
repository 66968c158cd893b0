// Kernels with one bug each, mostly (x, out) for 64 threads.
// As tree_sum, but for what its name says.
SKF_KERNEL(64) no_barrier_after_load(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  const u32 t = SKF_TID_X;
  part[t] = x[SKF_BID_X * 64u + t];
  for (u32 s = 32; s; s >>= 1) {
    if (t < s) part[t] += part[t + s];  // reads part[t + s] unordered
    SKF_BARRIER();
  }
  if (t == 0) out[SKF_BID_X] = part[0];
}

SKF_KERNEL(64) no_barrier_in_tree(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  const u32 t = SKF_TID_X;
  part[t] = x[SKF_BID_X * 64u + t];
  SKF_BARRIER();
  for (u32 s = 32; s; s >>= 1)
    if (t < s) part[t] += part[t + s];
  SKF_BARRIER();
  if (t == 0) out[SKF_BID_X] = part[0];
}

// The race is between two barriers, and the threads that race run on to the second.
SKF_KERNEL(64) race_between_barriers(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  const u32 t = SKF_TID_X;
  part[t] = x[SKF_BID_X * 64u + t];
  SKF_BARRIER();
  part[t / 2] += 1;
  SKF_BARRIER();
  out[SKF_BID_X * 64u + t] = part[t];
}

// Shuffles order nothing.
SKF_KERNEL(64) shuffle_for_barrier(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  const u32 t = SKF_TID_X;
  part[t] = x[SKF_BID_X * 64u + t];
  (void)SKF_SHFL_XOR(t, 1, 32);
  out[SKF_BID_X * 64u + t] = part[t ^ 1];
}

SKF_KERNEL(64) no_atomic(const i64* __restrict__ x, i64* out)
{
  if (SKF_TID_X == 0) out[0] += x[SKF_BID_X * 64u];
}

// Each block has passed barriers when it adds.
SKF_KERNEL(64) no_atomic_after_barriers(const i64* __restrict__ x, i64* out)
{
  SKF_BARRIER();
  SKF_BARRIER();
  if (SKF_TID_X == 0) out[0] += x[SKF_BID_X * 64u];
  SKF_BARRIER();
}

SKF_KERNEL(64) shared_one_past(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  part[SKF_TID_X + 1] = x[SKF_TID_X];
  SKF_BARRIER();
  out[SKF_TID_X] = part[SKF_TID_X];
}

SKF_KERNEL(64) shared_one_before(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  part[(i64)SKF_TID_X - 1] = x[SKF_TID_X];
  SKF_BARRIER();
  out[SKF_TID_X] = part[SKF_TID_X];
}

SKF_KERNEL(64) shared_read_past(const i64* __restrict__ x, i64* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  i64* part = (i64*)memory;
  part[SKF_TID_X] = x[SKF_TID_X];
  SKF_BARRIER();
  out[SKF_TID_X] = part[SKF_TID_X + 1];
}

SKF_KERNEL(64) array_read_past(const i64* __restrict__ x, i64* __restrict__ out)
{
  out[SKF_TID_X] = x[SKF_TID_X + 1];
}

SKF_KERNEL(64) array_written_past(const i64* __restrict__ x, i64* __restrict__ out)
{
  out[SKF_TID_X + 1] = x[SKF_TID_X];
}

SKF_KERNEL(64) private_past(const i64* __restrict__ x, i64* __restrict__ out)
{
  i64 mine[4];
  for (i64 i = 0; i < x[0]; i++) mine[i] = i;
  out[SKF_TID_X] = mine[SKF_TID_X % 4];
}

SKF_KERNEL(64) signed_overflow(const i64* __restrict__ x, i64* __restrict__ out)
{
  out[SKF_TID_X] = x[SKF_TID_X] + 0x7FFFFFFFFFFFFFFFll;
}

struct alignas(16) Two { i64 a, b; };
SKF_KERNEL(64) misaligned(const i64* __restrict__ x, i64* __restrict__ out)
{
  out[SKF_TID_X] = ((const Two*)(x + 1))->b;
}

SKF_KERNEL(64) writes_input(i64* x, i64* __restrict__ out)
{
  x[SKF_TID_X] = SKF_TID_X + 1000;
}

SKF_KERNEL(64) early_return(const i64* __restrict__ x, i64* __restrict__ out)
{
  if (SKF_TID_X == 40) return;
  SKF_BARRIER();
  out[SKF_TID_X] = x[SKF_TID_X];
}

SKF_KERNEL(64) two_barriers(const i64* __restrict__ x, i64* __restrict__ out)
{
  if (SKF_TID_X < 40)
    SKF_BARRIER();
  else
    SKF_BARRIER();
  out[SKF_TID_X] = x[SKF_TID_X];
}

SKF_KERNEL(64) one_barrier_more(const i64* __restrict__ x, i64* __restrict__ out)
{
  for (u32 i = 0; i < 2 + (SKF_TID_X == 63); i++) SKF_BARRIER();
  out[SKF_TID_X] = x[SKF_TID_X];
}

SKF_KERNEL(64) half_a_warp(const i64* __restrict__ x, i64* __restrict__ out)
{
  i64 value = x[SKF_TID_X];
  if (SKF_TID_X >= 16) value += SKF_SHFL_XOR(value, 8, 32);
  out[SKF_TID_X] = value;
}

SKF_KERNEL(64) two_shuffles(const i64* __restrict__ x, i64* __restrict__ out)
{
  i64 value = x[SKF_TID_X];
  if (SKF_TID_X < 16)
    value += SKF_SHFL_XOR(value, 8, 32);
  else
    value += SKF_SHFL_XOR(value, 4, 32);
  out[SKF_TID_X] = value;
}

SKF_KERNEL(64) shuffle_or_barrier(const i64* __restrict__ x, i64* __restrict__ out)
{
  i64 value = x[SKF_TID_X];
  if (SKF_TID_X == 1)
    SKF_BARRIER();
  else
    value += SKF_SHFL_XOR(value, 8, 32);
  out[SKF_TID_X] = value;
}

// Wrong in blocks that are no multiple of 32 threads.
SKF_KERNEL(64) absent_lane(const i64* __restrict__ x, i64* __restrict__ out)
{
  out[SKF_TID_X] = SKF_SHFL_XOR(x[SKF_TID_X], 16, 32);
}
