// failing_heap.h - makes operator new of this program fail on request, for the calling thread alone. Sanitizers have an
// operator new of their own: under them nothing can be made to fail.
#pragma once

namespace genai::test {

// So many allocations of this thread succeed before one fails; negative: none fails. Below 0 afterwards: it has failed.
void set_allocations_left(long count);
long allocations_left();

}  // namespace genai::test
