// How programs reach the kernels that were compiled before this header: a function for a
// shared library or, with SIMT_SERVER, a program that launches what it reads from stdin.
//
// SIMT_KERNELS is defined as a list of SIMT_KERNEL(name, most threads of a block).
#pragma once

#define SIMT_KERNEL(name, threads) \
  simt::Kernel{#name, threads, simt::Entry<name>::types, simt::Entry<name>::call}

static const simt::Kernel simt_kernels[] = {SIMT_KERNELS};

constexpr size_t simt_error_bytes = 512;

// What a launch needs besides its arguments; a letter of `types` for each of them.
struct SimtLaunch {
  char name[256], types[256];
  uint32_t grid[3], block[3];
  uint64_t shared_bytes, order;
};

// Launches with one slot of 8 bytes for each argument. Writes an empty text to `error`,
// or what went wrong. One call at a time.
extern "C" __attribute__((visibility("default"))) void simt_launch(
    const SimtLaunch* how, const uint64_t* slots, char* error) {
  for (const simt::Kernel& kernel : simt_kernels) {
    if (strcmp(kernel.name, how->name)) continue;
    if (strcmp(kernel.types, how->types)) {
      snprintf(error, simt_error_bytes, "it takes arguments of types \"%s\", not \"%s\"",
               kernel.types, how->types);
      return;
    }
    const uint32_t *g = how->grid, *b = how->block;
    const void* args[sizeof how->types];
    for (size_t i = 0; how->types[i]; i++) args[i] = &slots[i];
    simt::launch(kernel, {g[0], g[1], g[2]}, {b[0], b[1], b[2]}, how->shared_bytes, args,
                 how->order, error, simt_error_bytes);
    return;
  }
  snprintf(error, simt_error_bytes, "the text has no such kernel");
}

#ifdef SIMT_SERVER
// Reads launches until its input ends: a SimtLaunch, then for each argument its slot or,
// for a pointer, an array as its size, its address in the sender modulo 256, its bytes.
// Answers with the error's text and the bytes of all arrays. Arrays are copied to memory
// of exactly their size and of the sender's alignment, so that the sanitizers see what a
// kernel does beside them.
static void simt_read(void* to, size_t size) {
  if (fread(to, 1, size, stdin) != size) exit(0);
}

int main() {
  SimtLaunch how;
  for (;;) {
    simt_read(&how, sizeof how);
    uint64_t slots[sizeof how.types] = {}, sizes[sizeof how.types] = {};
    char* bases[sizeof how.types] = {};
    for (size_t i = 0; how.types[i]; i++) {
      if (how.types[i] != 'P') {
        simt_read(&slots[i], 8);
        continue;
      }
      uint64_t offset;
      simt_read(&sizes[i], 8);
      simt_read(&offset, 8);
      void* base = nullptr;
      if (posix_memalign(&base, 256, offset + sizes[i])) abort();
      bases[i] = static_cast<char*>(base);
      slots[i] = reinterpret_cast<uint64_t>(bases[i] + offset);
      simt_read(bases[i] + offset, sizes[i]);
#ifdef __SANITIZE_ADDRESS__
      __asan_poison_memory_region(base, offset);
#endif
    }
    char error[simt_error_bytes] = "";
    simt_launch(&how, slots, error);
    fwrite(error, 1, sizeof error, stdout);
    for (size_t i = 0; how.types[i]; i++) {
      if (!bases[i]) continue;
      fwrite(reinterpret_cast<char*>(slots[i]), 1, sizes[i], stdout);
#ifdef __SANITIZE_ADDRESS__
      __asan_unpoison_memory_region(bases[i], slots[i] - uint64_t(bases[i]));
#endif
      free(bases[i]);
    }
    fflush(stdout);
  }
}
#endif
