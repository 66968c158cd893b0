#if defined(SKF_SHIM)
// The header that was included before this text defines the macros.
#elif defined(__HIP__) || defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define SKF_DEVICE static __device__ __forceinline__
// Blocks that are to fit are CUDA's; HIP would count waves here.
#define SKF_THREADS(threads, ...) threads
#define SKF_KERNEL(...) \
  extern "C" __global__ void __launch_bounds__(SKF_THREADS(__VA_ARGS__, 0))
#define SKF_DYN_SMEM(name) extern __shared__ __align__(16) unsigned char name[]
#define SKF_BARRIER() __syncthreads()
#define SKF_SHFL_XOR(v, d, w) __shfl_xor(v, d, w)
#elif defined(__CUDACC_RTC__) || defined(__CUDACC__)
#define SKF_DEVICE static __device__ __forceinline__
#define SKF_KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define SKF_DYN_SMEM(name) extern __shared__ __align__(16) unsigned char name[]
#define SKF_BARRIER() __syncthreads()
#define SKF_SHFL_XOR(v, d, w) __shfl_xor_sync(skf_warp(w), v, d, w)
// The lanes that shuffle with this one; other threads of its warp may be elsewhere.
SKF_DEVICE unsigned skf_warp(unsigned w)
{
  const unsigned t =
      threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return w == 32 ? ~0u : ((1u << w) - 1u) << (t & (32u - w));
}
#else
#error "This text is for NVRTC, nvcc or hiprtc, or needs SKF_SHIM and its macros."
#endif

#if !defined(SKF_SHIM)
#define SKF_TID_X threadIdx.x
#define SKF_TID_Y threadIdx.y
#define SKF_TID_Z threadIdx.z
#define SKF_BID_X blockIdx.x
#define SKF_BID_Y blockIdx.y
#define SKF_BID_Z blockIdx.z
#define SKF_ATOMIC_ADD(p, v) ((void)atomicAdd(p, v))
#define SKF_PREFETCH(p) ((void)0)
#define SKF_POPC32(x) __popc(x)
#define SKF_POPC64(x) __popcll(x)
// Zeros below the lowest set bit; 32 or 64 if no bit is set.
#define SKF_CTZ32(x) __clz(__brev(x))
#define SKF_CTZ64(x) __clzll(__brevll(x))
#define SKF_F32_BITS(x) ((u32)__float_as_uint(x))
#define SKF_BITS_F32(x) __uint_as_float(x)
#define SKF_F64_BITS(x) ((u64)__double_as_longlong(x))
#define SKF_BITS_F64(x) __longlong_as_double((long long)(x))
#define SKF_LOOP _Pragma("unroll 1")
#define SKF_UNROLL _Pragma("unroll")
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;

// For memory that is read or written as another type than its buffer's.
#define SKF_ALIAS __attribute__((may_alias))
typedef u16 SKF_ALIAS u16_a;
typedef u32 SKF_ALIAS u32_a;
typedef u64 SKF_ALIAS u64_a;
struct __attribute__((may_alias, aligned(8))) u32x2 { u32 x, y; };
struct __attribute__((may_alias, aligned(16))) u32x4 { u32 x, y, z, w; };
struct __attribute__((may_alias, aligned(16))) u64x2 { u64 x, y; };

// Signed integers wrap.
SKF_DEVICE i32 skf_add(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
SKF_DEVICE i64 skf_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
SKF_DEVICE i32 skf_sub(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
SKF_DEVICE i64 skf_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
SKF_DEVICE i32 skf_mul(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
SKF_DEVICE i64 skf_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
SKF_DEVICE i32 skf_shl(i32 a, i32 b) { return (i32)((u32)a << b); }
SKF_DEVICE i64 skf_shl(i64 a, i64 b) { return (i64)((u64)a << b); }
