// Runs generated GPU kernels on a CPU, to check them: a thread is a fiber.
//
// The kernels' text is compiled after this header, which gives its SKF_* macros another
// meaning. One block runs at a time, one thread of it at a time; a thread runs until it
// waits at a barrier or a shuffle. So a kernel computes here what it computes on a GPU
// if it is right whatever the order of blocks, warps and threads, which is a parameter:
// forward, reverse, or shuffled anew at every barrier.
//
// What is undefined on a GPU is looked for and ends the launch with an error:
//   - a barrier that some threads of the block miss, or pass at another line;
//   - a shuffle that only some of its lanes reach, or from a lane that is not there;
//   - a write outside the block's shared memory (a few bytes outside; all of them, and
//     reads, in builds with AddressSanitizer, which sees exact sizes).
// Shared memory starts as bytes 0xCD. In builds with ThreadSanitizer two accesses are a
// race unless a barrier lies between them, or an atomic; blocks are never ordered.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "simt_fibers.h"

namespace simt {
namespace {

constexpr unsigned most_threads = 1024, warp_size = 32;
constexpr unsigned char poison = 0xCD, guard = 0xFD;

struct Dim {
  unsigned x, y, z;
  unsigned count() const { return x * y * z; }
  Dim place(unsigned number) const {
    return {number % x, number / x % y, number / (x * y)};
  }
};

enum class State { ready, at_barrier, at_shuffle, returned };

// ------------------------------------------------------------ the machine

struct Thread {
  Dim index;
  unsigned number;
  State state;
  int line;        // of the barrier or shuffle it waits at
  unsigned width, source;  // of the shuffle: how many lanes take part, and whose value
  uint64_t sent, received;  // this one gets
  Fiber fiber;
};

// The order of blocks, warps and lanes: 0 forward, 1 reverse, any other a seed.
struct Order {
  uint64_t kind, random;
  explicit Order(uint64_t kind) : kind(kind), random(kind * 0x9E3779B97F4A7C15u | 1) {}

  unsigned below(unsigned n) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return unsigned((random >> 32) * n >> 32);
  }
  SIMT_UNSEEN void arrange(unsigned* items, unsigned n) {
    for (unsigned i = 0; i < n; i++) items[i] = kind == 1 ? n - 1 - i : i;
    if (kind < 2) return;
    for (unsigned i = n; i > 1; i--) {
      unsigned j = below(i), item = items[j];
      items[j] = items[i - 1], items[i - 1] = item;
    }
  }
};

// A barrier has two tokens, used in turn: a thread that has run on to the next barrier
// must not be ordered before one that still has to leave this one.
struct Tokens {
  uint64_t barrier[2];
};

struct Machine {
  Dim grid, shape, block;  // shape: threads of a block
  unsigned n_threads;
  unsigned char* shared;
  Thread* current;
  void (*kernel)(const void* const*);
  const void* const* args;
  unsigned barriers;
  Tokens* tokens;  // of the block that runs
  uint64_t token_start, token_end;  // of all blocks' threads
  Fiber scheduler;
  Thread* threads[2 * most_threads];
  unsigned first;  // thread 0 of the block is threads[first]
  char* error;
  size_t error_size;

  Thread& thread(unsigned number) {
    return *threads[first + number];
  }
  template <class... A>
  bool fail(const char* format, A... values) {
    if (!*error) snprintf(error, error_size, format, values...);
    return false;
  }
};
Machine machine;

// Ends the thread's turn. Whatever it did until now was before the end of the launch, even
// if an error keeps it from going on.
SIMT_UNSEEN void stop(State state) {
  Thread& self = *machine.current;
  self.state = state;
  release(&machine.token_end);
  switch_fiber(self.fiber, machine.scheduler);
}

SIMT_UNSEEN void run_threads() {
#ifdef __SANITIZE_ADDRESS__
  const void* stack;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &machine.scheduler.size);
  machine.scheduler.stack = static_cast<char*>(const_cast<void*>(stack));
#endif
  for (;;) {
    acquire(&machine.token_start);
    machine.kernel(machine.args);
    stop(State::returned);
  }
}

SIMT_UNSEEN void resume(Thread& thread) {
  machine.current = &thread;
  switch_fiber(machine.scheduler, thread.fiber);
}

// ------------------------------------------------------------ what kernels call

SIMT_UNSEEN void barrier(int line) {
  uint64_t* token = &machine.tokens->barrier[machine.barriers & 1];
  machine.current->line = line;
  release(token);
  stop(State::at_barrier);
  acquire(token);
}

// Returns what thread `source` of the block sends, one of `width` that exchange values. A
// shuffle orders no accesses to memory, so that no tokens are passed.
SIMT_UNSEEN uint64_t exchange(uint64_t bits, unsigned source, unsigned width, int line) {
  Thread& self = *machine.current;
  self.line = line, self.width = width, self.source = source, self.sent = bits;
  stop(State::at_shuffle);
  return self.received;
}

template <class T>
T shuffle_xor(T value, unsigned distance, unsigned width, int line) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = exchange(bits, machine.current->number ^ distance, width, line);
  memcpy(&value, &bits, sizeof value);
  return value;
}

// As std::atomic_ref does it; <atomic> is half the time of compiling a small kernel.
template <class T>
void atomic_add(T* place, std::type_identity_t<T> value) {
  T old, sum;
  __atomic_load(place, &old, __ATOMIC_RELAXED);
  do {
    sum = old + value;
  } while (!__atomic_compare_exchange(place, &old, &sum, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
}

template <class To, class From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// ------------------------------------------------------------ scheduling

bool alike(const Thread& a, const Thread& b) {
  if (a.state != b.state) return false;
  if (a.state == State::at_shuffle && a.width != b.width) return false;
  return a.state == State::returned || a.line == b.line;
}

// Whether the threads from `first` to `end` all do the same in the same line. `other` is
// one that does not.
SIMT_UNSEEN bool all_alike(unsigned first, unsigned end, unsigned& other) {
  for (other = first + 1; other < end; other++)
    if (!alike(machine.thread(first), machine.thread(other))) return false;
  return true;
}

SIMT_UNSEEN bool fail_unlike(unsigned one, unsigned other) {
  char what[2][64];
  for (unsigned i = 0; i < 2; i++) {
    const Thread& thread = machine.thread(i ? other : one);
    if (thread.state == State::returned)
      snprintf(what[i], sizeof what[i], "has returned");
    else if (thread.state == State::at_barrier)
      snprintf(what[i], sizeof what[i], "waits at the barrier in line %d", thread.line);
    else
      snprintf(what[i], sizeof what[i], "waits at the shuffle of %u lanes in line %d",
               thread.width, thread.line);
  }
  const Dim& block = machine.block;
  return machine.fail("in block (%u, %u, %u) thread %u %s, but thread %u %s", block.x,
                      block.y, block.z, one, what[0], other, what[1]);
}

// Gives the lanes from `first` to `end`, all at one shuffle, what they ask for.
SIMT_UNSEEN bool exchange_lanes(unsigned first, unsigned end) {
  for (unsigned i = first; i < end; i++) {
    Thread& thread = machine.thread(i);
    if (thread.source < first || thread.source >= end)
      return machine.fail("thread %u reads, at the shuffle in line %d, from thread %u, "
                          "which takes no part", i, thread.line, thread.source);
    thread.received = machine.thread(thread.source).sent;
    thread.state = State::ready;
  }
  return true;
}

// Lets the lanes go on that wait for no other lane of their shuffle. If there is none,
// though some wait, they would wait for ever.
SIMT_UNSEEN bool run_shuffles(unsigned first, unsigned end) {
  bool waiting = false, going = false;
  unsigned one = 0, other = 0;
  for (unsigned i = first; i < end; i++) {
    const Thread& thread = machine.thread(i);
    if (thread.state != State::at_shuffle) continue;
    unsigned from = i / thread.width * thread.width, to = from + thread.width, unlike;
    if (to > end) to = end;
    if (all_alike(from, to, unlike)) {
      if (!exchange_lanes(from, to)) return false;
      going = true;
    } else if (!waiting) {
      waiting = true, one = from, other = unlike;
    }
  }
  return going || !waiting || fail_unlike(one, other);
}

// Runs the threads of a warp until each is at a barrier or has returned.
SIMT_UNSEEN bool run_warp(unsigned warp, Order& order) {
  unsigned first = warp * warp_size, end = first + warp_size;
  if (end > machine.n_threads) end = machine.n_threads;
  unsigned lanes[warp_size];
  for (;;) {
    order.arrange(lanes, end - first);
    bool ran = false;
    for (unsigned i = 0; i < end - first; i++) {
      Thread& thread = machine.thread(first + lanes[i]);
      if (thread.state != State::ready) continue;
      resume(thread);
      ran = true;
    }
    if (!ran) return true;
    if (!run_shuffles(first, end)) return false;
  }
}

SIMT_UNSEEN bool run_block(Order& order) {
  unsigned n = machine.n_threads, warps[most_threads / warp_size];
  unsigned n_warps = (n + warp_size - 1) / warp_size;
  for (unsigned i = 0; i < n; i++) {
    Thread& thread = machine.thread(i);
    thread.index = machine.shape.place(i);
    thread.number = i;
    thread.state = State::ready;
  }
  machine.barriers = 0;
  release(&machine.token_start);
  for (;;) {
    order.arrange(warps, n_warps);
    for (unsigned i = 0; i < n_warps; i++)
      if (!run_warp(warps[i], order)) return false;
    if (unsigned other; !all_alike(0, n, other)) return fail_unlike(0, other);
    if (machine.thread(0).state == State::returned) return true;
    machine.barriers++;
    for (unsigned i = 0; i < n; i++) machine.thread(i).state = State::ready;
  }
}

// ------------------------------------------------------------ shared memory

// Memory of exactly the size asked for where AddressSanitizer watches its ends, and with
// guard bytes around it elsewhere.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t guard_bytes = 0;
#else
constexpr size_t guard_bytes = 64;
#endif

SIMT_UNSEEN unsigned char* make_shared(size_t size) {
  auto* memory = static_cast<unsigned char*>(malloc(size + 2 * guard_bytes));
  if (!memory) abort();
  // A call of memset would be seen by the race detector.
  auto* bytes = static_cast<volatile unsigned char*>(memory);
  for (size_t i = 0; i < size + 2 * guard_bytes; i++) bytes[i] = guard;
  for (size_t i = 0; i < size; i++) bytes[guard_bytes + i] = poison;
  return memory + guard_bytes;
}

SIMT_UNSEEN bool is_guarded(const unsigned char* shared, size_t size) {
  for (size_t i = 0; i < guard_bytes; i++) {
    const char* text = "a write to byte %zd of %zu bytes of shared memory";
    if (shared[size + i] != guard) return machine.fail(text, size + i, size);
    if (shared[-1 - ptrdiff_t(i)] != guard)
      return machine.fail(text, -1 - ptrdiff_t(i), size);
  }
  return true;
}

// ------------------------------------------------------------ launches

// A kernel by name. `types` has a letter for each argument, as Python's struct module.
struct Kernel {
  const char* name;
  unsigned most_threads;
  const char* types;
  void (*call)(const void* const* args);
};

template <class T>
struct Letter {
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr bool is_float = T(0.5) != T(0) && T(2) != T(1);
  static constexpr char of() {
    if (is_float) return sizeof(T) == 4 ? 'f' : 'd';
    if (T(2) == T(1)) return '?';
    constexpr const char* letters = is_signed ? "bhiq" : "BHIQ";
    return letters[sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3];
  }
};
template <class T>
struct Letter<T*> {
  static constexpr char of() { return 'P'; }
};

template <auto kernel>
struct Entry;
template <class... A, void (*kernel)(A...)>
struct Entry<kernel> {
  static constexpr char types[] = {Letter<A>::of()..., 0};
  template <size_t... I>
  SIMT_UNSEEN static void spread(const void* const* args, std::index_sequence<I...>) {
    kernel(*static_cast<const A*>(args[I])...);
  }
  SIMT_UNSEEN static void call(const void* const* args) {
    spread(args, std::index_sequence_for<A...>());
  }
};

SIMT_UNSEEN bool fits(const Kernel& kernel, Dim grid, Dim shape) {
  unsigned long threads = 1ul * shape.x * shape.y * shape.z;
  if (threads == 0 || threads > kernel.most_threads || threads > most_threads ||
      shape.z > 64)
    return machine.fail("a block of %u x %u x %u threads; the kernel allows %u", shape.x,
                        shape.y, shape.z, kernel.most_threads);
  if (!grid.x || !grid.y || !grid.z || grid.x > 0x7FFFFFFF || grid.y > 0xFFFF ||
      grid.z > 0xFFFF)
    return machine.fail("a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
  return true;
}

// Gives a block its fibers, made when they are first needed. The race detector takes what a
// fiber does to be ordered, and blocks are not ordered: there, the blocks have different
// fibers or, if they are many, fibers that do not follow the grid.
SIMT_UNSEEN void deal_threads([[maybe_unused]] size_t block,
                              [[maybe_unused]] size_t n_blocks) {
  unsigned n = machine.n_threads, set = 0;
#ifdef __SANITIZE_THREAD__
  unsigned n_sets = n > most_threads / 2 ? 2 : most_threads / n;
  set = n_blocks > n_sets ? (block * 0x9E3779B97F4A7C15u >> 40) % n_sets : block;
#endif
  machine.first = set * n;
  for (unsigned i = machine.first; i < machine.first + n; i++)
    if (!machine.threads[i]) {
      machine.threads[i] = new Thread();
      prepare(machine.threads[i]->fiber, run_threads);
    }
}

// After an error threads are in the midst of the kernel: they begin anew.
SIMT_UNSEEN void abandon_threads() {
  for (Thread* thread : machine.threads)
    if (thread) prepare(thread->fiber, run_threads);
}

// Runs a kernel; whether it did nothing wrong, else what is in `error`.
SIMT_UNSEEN bool launch(const Kernel& kernel, Dim grid, Dim shape, size_t shared_bytes,
                        const void* const* args, uint64_t order_kind, char* error,
                        size_t error_size) {
  error[0] = 0;
  machine.error = error, machine.error_size = error_size;
  if (!fits(kernel, grid, shape)) return false;
  machine.grid = grid, machine.shape = shape, machine.n_threads = shape.count();
  machine.kernel = kernel.call, machine.args = args;
#ifdef __SANITIZE_THREAD__
  machine.scheduler.race_detector = __tsan_get_current_fiber();
#endif

  Order order(order_kind);
  size_t n_blocks = size_t(grid.x) * grid.y * grid.z;
  auto* blocks = static_cast<unsigned*>(malloc(n_blocks * sizeof(unsigned)));
  // What orders threads is the block's own, and its memory is not used again: else there
  // would be an order between blocks.
  auto* tokens = static_cast<Tokens*>(malloc(n_blocks * sizeof(Tokens)));
  auto** shared = static_cast<unsigned char**>(calloc(n_blocks, sizeof(char*)));
  if (!blocks || !tokens || !shared) abort();
  order.arrange(blocks, unsigned(n_blocks));
  bool good = true;
  for (size_t i = 0; good && i < n_blocks; i++) {
    machine.block = grid.place(blocks[i]);
    machine.tokens = &tokens[i];
    machine.shared = shared[i] = make_shared(shared_bytes);
    deal_threads(i, n_blocks);
    good = run_block(order) && is_guarded(shared[i], shared_bytes);
#ifndef __SANITIZE_THREAD__
    free(shared[i] - guard_bytes);
    shared[i] = nullptr;
#endif
  }
  acquire(&machine.token_end);
  for (size_t i = 0; good && i < n_blocks; i++)
    if (shared[i]) free(shared[i] - guard_bytes);
  free(shared), free(tokens), free(blocks);
  if (!good) abandon_threads();
  return good;
}

}  // namespace
}  // namespace simt

// ------------------------------------------------------------ the kernels' words

#define SKF_SHIM
#define SKF_KERNEL(...) extern "C" __attribute__((visibility("hidden"))) void
#define SKF_DEVICE static inline
#define SKF_DYN_SMEM(name) unsigned char* name = simt::machine.shared
#define SKF_BARRIER() simt::barrier(__LINE__)
#define SKF_TID_X (simt::machine.current->index.x)
#define SKF_TID_Y (simt::machine.current->index.y)
#define SKF_TID_Z (simt::machine.current->index.z)
#define SKF_BID_X (simt::machine.block.x)
#define SKF_BID_Y (simt::machine.block.y)
#define SKF_BID_Z (simt::machine.block.z)
#define SKF_SHFL_XOR(value, distance, width) \
  simt::shuffle_xor(value, distance, width, __LINE__)
#define SKF_ATOMIC_ADD(place, value) simt::atomic_add(place, value)
#define SKF_PREFETCH(place) ((void)0)
#define SKF_POPC32(x) __builtin_popcount(x)
#define SKF_POPC64(x) __builtin_popcountll(x)
#define SKF_CTZ32(x) ((x) ? __builtin_ctz(x) : 32)
#define SKF_CTZ64(x) ((x) ? __builtin_ctzll(x) : 64)
#define SKF_F32_BITS(x) simt::bits_as<unsigned, float>(x)
#define SKF_BITS_F32(x) simt::bits_as<float, unsigned>(x)
#define SKF_F64_BITS(x) simt::bits_as<unsigned long long, double>(x)
#define SKF_BITS_F64(x) simt::bits_as<double, unsigned long long>(x)
#define SKF_LOOP
#define SKF_UNROLL
