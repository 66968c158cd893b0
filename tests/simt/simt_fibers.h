// Fibers: functions that run in turn, each on a stack of its own, as the sanitizers know
// them.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The machine itself is no part of the program that ThreadSanitizer checks. Not inlined,
// for then it would be.
#define SIMT_UNSEEN __attribute__((noinline, no_sanitize("thread")))

namespace simt {
namespace {

constexpr size_t stack_bytes = 256 << 10, page_bytes = 4096;

// A stack and where its function goes on. Switching saves registers with _setjmp, which
// makes no system call as swapcontext does; but the sanitizers know only the latter.
struct Fiber {
  char* stack = nullptr;
  size_t size = stack_bytes;
  ucontext_t context;
  jmp_buf registers;
  bool started = false;  // and stopped since: its registers are saved
  void* race_detector = nullptr;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool by_context = true;
#else
constexpr bool by_context = false;
#endif

// Makes `fiber` run `entry` from its start when it is next switched to.
SIMT_UNSEEN void prepare(Fiber& fiber, void (*entry)()) {
  if (!fiber.stack) {
    void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    mprotect(memory, page_bytes, PROT_NONE);  // stacks grow down to here
    fiber.stack = static_cast<char*>(memory);
  }
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.size;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
  fiber.started = false;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(fiber.stack, fiber.size);
#endif
#ifdef __SANITIZE_THREAD__
  if (fiber.race_detector) __tsan_destroy_fiber(fiber.race_detector);
  fiber.race_detector = __tsan_create_fiber(0);
#endif
}

SIMT_UNSEEN void switch_fiber(Fiber& from, Fiber& to) {
#ifdef __SANITIZE_THREAD__
  constexpr unsigned no_order = 1;  // a switch is no synchronisation
  __tsan_switch_to_fiber(to.race_detector, no_order);
#endif
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, to.stack, to.size);
#endif
  if (by_context) {
    swapcontext(&from.context, &to.context);
  } else if (!_setjmp(from.registers)) {
    from.started = true;
    if (to.started) _longjmp(to.registers, 1);
    setcontext(&to.context);
  }
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

// What happens before release(token) happens before what follows acquire(token).
inline void release([[maybe_unused]] void* token) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(token);
#endif
}
inline void acquire([[maybe_unused]] void* token) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(token);
#endif
}

}  // namespace
}  // namespace simt
