// Kernels that are right. Blocks are of 64 threads unless said otherwise.
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

// Block (16, 8): tiles of a matrix, transposed by way of shared memory.
SKF_KERNEL(128) transpose(const float* __restrict__ x, i32 rows, i32 columns,
                          float* __restrict__ out)
{
  SKF_DYN_SMEM(memory);
  float* tile = (float*)memory;
  const i32 column = SKF_BID_X * 16 + SKF_TID_X, row = SKF_BID_Y * 8 + SKF_TID_Y;
  if (row < rows && column < columns)
    tile[SKF_TID_Y * 17 + SKF_TID_X] = x[row * columns + column];
  SKF_BARRIER();
  const u32 t = SKF_TID_Y * 16 + SKF_TID_X, r = t % 8, c = t / 8;
  const i32 to_row = SKF_BID_X * 16 + c, to_column = SKF_BID_Y * 8 + r;
  if (to_row < columns && to_column < rows)
    out[to_row * rows + to_column] = tile[r * 17 + c];
}

// Sums of 32 and of 8 lanes by butterflies; more shuffles than there are slots.
SKF_KERNEL(64) shuffles(const i32* __restrict__ x, i32* __restrict__ all,
                         double* __restrict__ eight)
{
  const u32 i = SKF_BID_X * 64u + SKF_TID_X;
  i32 sum = x[i];
  for (i32 d = 16; d; d >>= 1) sum += SKF_SHFL_XOR(sum, d, 32);
  all[i] = sum;
  double part = x[i];
  for (i32 d = 4; d; d >>= 1) part += SKF_SHFL_XOR(part, d, 8);
  eight[i] = part;
}

// Eight lanes shuffle while the other lanes of their warp are elsewhere.
SKF_KERNEL(64) some_groups(const i32* __restrict__ x, i32* __restrict__ out)
{
  const u32 i = SKF_TID_X;
  i32 sum = x[i];
  if (i / 8 % 2)
    for (i32 d = 4; d; d >>= 1) sum += SKF_SHFL_XOR(sum, d, 8);
  for (i32 d = 16; d; d >>= 1) sum += SKF_SHFL_XOR(sum, d, 32);
  out[i] = sum;
}

// A histogram in shared memory, added to the one of all blocks.
SKF_KERNEL(1024) histogram(const i32* __restrict__ x, i64 n, i32 threads, i32* out,
                           float* weight, double* wide, u32* count, i64* total)
{
  SKF_DYN_SMEM(memory);
  i32* bins = (i32*)memory;
  const i32 t = SKF_TID_X;
  for (i32 b = t; b < 10; b += threads) bins[b] = 0;
  SKF_BARRIER();
  for (i64 i = (i64)SKF_BID_X * threads + t; i < n; i += 3 * threads)
    SKF_ATOMIC_ADD(bins + x[i], 1);
  SKF_BARRIER();
  for (i32 b = t; b < 10; b += threads) SKF_ATOMIC_ADD(out + b, bins[b]);
  SKF_ATOMIC_ADD(weight, 0.5f);
  SKF_ATOMIC_ADD(wide, 0.25);
  SKF_ATOMIC_ADD(count, 1u);
  SKF_ATOMIC_ADD(total, 1ll << 40);
}

// out[number of the thread in the grid] = its three places in the block, and its block's.
SKF_KERNEL(1024) places(i32 x, i32 y, i32 z, i32 gx, i32 gy, u32* out)
{
  const u32 in_block = SKF_TID_X + x * (SKF_TID_Y + y * SKF_TID_Z);
  const u32 block = SKF_BID_X + gx * (SKF_BID_Y + gy * SKF_BID_Z);
  u32* mine = out + 6 * (block * x * y * z + in_block);
  mine[0] = SKF_TID_X, mine[1] = SKF_TID_Y, mine[2] = SKF_TID_Z;
  mine[3] = SKF_BID_X, mine[4] = SKF_BID_Y, mine[5] = SKF_BID_Z;
}

SKF_KERNEL(32) bits(u32* out, unsigned long long* wide, float* f, double* d)
{
  if (SKF_TID_X) return;
  out[0] = SKF_POPC32(0xF0F0u), out[1] = SKF_CTZ32(0u), out[2] = SKF_CTZ32(8u);
  out[3] = SKF_F32_BITS(1.0f);
  wide[0] = SKF_POPC64(~0ull), wide[1] = SKF_CTZ64(0ull), wide[2] = SKF_CTZ64(1ull << 40);
  wide[3] = SKF_F64_BITS(1.0);
  f[0] = SKF_BITS_F32(0x40000000u);
  d[0] = SKF_BITS_F64(0x4000000000000000ull);
  SKF_PREFETCH(f);
  // What nothing has written is 0xCD in shared memory.
  SKF_DYN_SMEM(memory);
  out[4] = *(u32*)(memory + 60);
}

SKF_KERNEL(32) all_types(bool a, unsigned char b, unsigned short c, u32 d, i32 e,
                         i64 f, float g, double h, double* out)
{
  if (SKF_TID_X) return;
  out[0] = a, out[1] = b, out[2] = c, out[3] = d, out[4] = e, out[5] = f, out[6] = g;
  out[7] = h;
}
