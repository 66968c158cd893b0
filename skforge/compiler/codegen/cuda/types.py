"""C++ text for LIR types, constants and names."""

from __future__ import annotations

import math
import re

import numpy as np

from skforge.compiler.ir.lir import nodes as lir

#: Text before the kernels: macros for each compiler, types and integer helpers. One
#: text serves NVRTC, nvcc, hiprtc and, for tests on a CPU, a C++ compiler with a header
#: that defines ``SKF_SHIM`` and every macro named here. There is no ``#include``: NVRTC
#: has no standard headers. Compiler flags, not this text, prevent contraction of
#: multiply-adds (``--fmad=false``, ``-ffp-contract=off``).
PRELUDE = """\
#if defined(SKF_SHIM)
// The header that was included before this text defines the macros.
#elif defined(__HIP__) || defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define SKF_DEVICE static __device__ __forceinline__
// Blocks that are to fit are CUDA's; HIP would count waves here.
#define SKF_THREADS(threads, ...) threads
#define SKF_KERNEL(...) \\
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
"""

# Words that cannot be names of values.
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class
    compl const constexpr const_cast continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try
    typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq char16_t char32_t linux unix
    u8 u16 u32 u64 i32 i64 f32 f64 u16_a u32_a u64_a u32x2 u32x4 u64x2
    exp expf fabs fabsf threadIdx blockIdx blockDim gridDim warpSize
"""
RESERVED = frozenset(_WORDS.split())

# Double underscores are reserved in C++, and skf_ is the emitter's prefix.
_PLAIN = re.compile(r"(?!skf_|SKF_)[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")
_OTHER = re.compile(r"[\W_]+", re.ASCII)


def memory_text(element: lir.Scalar) -> str:
    """Return the C++ type of a buffer's element; a bool takes a byte."""
    return "u8" if element == lir.BOOL else element.name


def literal(value: int | float | bool, element: lir.Scalar) -> str:
    """Return a constant as an expression that needs no brackets around it."""
    if element == lir.BOOL:
        return "true" if value else "false"
    if element.is_float:
        return _float_literal(float(value), element)
    bits = 8 * element.bytes
    number = int(value) & ((1 << bits) - 1)
    if not element.is_signed:
        return f"{number}u"
    suffix = "LL" if element == lir.I64 else ""
    if number >> (bits - 1):
        number -= 1 << bits
        if number == -(1 << (bits - 1)):  # has no literal: minus is an operator
            return f"({number + 1}{suffix} - 1)"
        return f"({number}{suffix})"
    return f"{number}{suffix}"


def _float_literal(value: float, element: lir.Scalar) -> str:
    with np.errstate(over="ignore"):  # beyond float32 is infinity, as in a cast
        number = np.float32(value) if element == lir.F32 else np.float64(value)
    exact = float(number)
    if not math.isfinite(exact):
        if element == lir.F32:
            return f"SKF_BITS_F32({number.view(np.uint32)}u)"
        return f"SKF_BITS_F64({number.view(np.uint64)}ull)"
    digits, _, exponent = exact.hex().partition("p")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    text = f"{digits}p{exponent}{'f' if element == lir.F32 else ''}"
    return f"({text})" if text.startswith("-") else text


class Names:
    """Generates unique C++ names."""

    def __init__(self) -> None:
        self._taken = set(RESERVED)

    def new(self, hint: str) -> str:
        """Return a name that resembles an LIR name."""
        name = hint.replace(".", "_")
        if not _PLAIN.fullmatch(name):
            name = _OTHER.sub("_", f"v_{name}").strip("_")
        if name in self._taken:
            number = 2
            while f"{name}_{number}" in self._taken:
                number += 1
            name = f"{name}_{number}"
        self._taken.add(name)
        return name


def to_bits(element: lir.Scalar, text: str) -> str:
    """Return a value's bits as a u32, or as a u64 if it is 64 bits wide."""
    match element.name:
        case "f32":
            return f"SKF_F32_BITS({text})"
        case "f64":
            return f"SKF_F64_BITS({text})"
        case "i64":
            return f"(u64){text}"
        case "u32":
            return text
        case _:
            return f"(u32){text}"


def from_bits(element: lir.Scalar, text: str) -> str:
    """Return the value whose bits are the low bits of an unsigned integer."""
    match element.name:
        case "f32":
            return f"SKF_BITS_F32({text})"
        case "f64":
            return f"SKF_BITS_F64({text})"
        case "bool":
            return f"(u8)({text}) != 0"
        case _:
            return f"({element.name}){bracketed(text)}"


def bracketed(text: str) -> str:
    """Return an expression in brackets, unless it is a name or already has them."""
    if text.startswith("(") and text.find(")") == len(text) - 1:
        return text
    return text if text.replace(".", "").isidentifier() else f"({text})"
