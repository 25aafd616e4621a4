#include "tests/failing_heap.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace genai::test {
namespace {

thread_local long left = -1;

}  // namespace

void set_allocations_left(long count) { left = count; }
long allocations_left() { return left; }

}  // namespace genai::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t bytes) {
  const bool fails = genai::test::left >= 0 && genai::test::left-- == 0;
  void* const memory = fails ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
