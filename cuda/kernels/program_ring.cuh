// program_ring.cuh - the ring of a program (NOTE [Program]): stages in the order in which they are consumed, numbered
// through the whole program. One thread copies; each stage is consumed by one group of warps.
//
// A stage has the slot of its number modulo kRingSlots, but a barrier of its own among kRingBarriers: a group may wait
// for a stage whose slot still has an earlier one on its way, and the parity of a slot's only barrier would let it pass
// a round early.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

inline constexpr int kRingSlots = 16;
inline constexpr int kRingBarriers = 64;
static_assert((kRingSlots & (kRingSlots - 1)) == 0 && (kRingBarriers & (kRingBarriers - 1)) == 0);

struct ProgramRing {
  unsigned char* slots;
  SharedBarrier* full;   // [kRingBarriers]
  SharedBarrier* empty;  // [kRingSlots]
  int slot_bytes;

  __device__ __forceinline__ unsigned char* slot(int stage) const {
    return slots + (stage & (kRingSlots - 1)) * slot_bytes;
  }
  __device__ __forceinline__ void wait_full(int stage) const {
    wait_phase(full + (stage & (kRingBarriers - 1)), static_cast<unsigned>(stage / kRingBarriers) & 1u);
  }
  // By one lane of each warp of the group, when the warp has read the stage.
  __device__ __forceinline__ void release(int stage) const { arrive(empty + (stage & (kRingSlots - 1))); }
};

// The warp that copies: all of its lanes call, one acts.
class RingFeeder {
 public:
  __device__ __forceinline__ explicit RingFeeder(const ProgramRing& ring) : ring_(ring), acts_(threadIdx.x % 32 == 0) {}

  // At most so many stages on their way from now on.
  __device__ __forceinline__ void set_window(int stages) { window_ = stages; }

  // One stage of up to a slot.
  __device__ __forceinline__ void copy(const void* source, unsigned bytes) {
    wait_empty(stage_);
    wait_window();
    SharedBarrier* full = ring_.full + (stage_ & (kRingBarriers - 1));
    if (acts_) {
      arrive_expecting(full, bytes);
      bulk_load(ring_.slot(stage_), source, bytes, full, read_once_policy());
    }
    ++stage_;
  }

  // Two stages, the first even, whose slots are used as one: the second is complete at once.
  __device__ __forceinline__ void copy_double(const void* source, unsigned bytes) {
    wait_empty(stage_ + 1);
    copy(source, bytes);
    if (acts_) arrive(ring_.full + (stage_ & (kRingBarriers - 1)));
    ++stage_;
  }

  // Makes the next stage an even one.
  __device__ __forceinline__ void align() {
    if (stage_ % 2 == 0) return;
    wait_empty(stage_);
    if (acts_) {
      arrive(ring_.full + (stage_ & (kRingBarriers - 1)));
      for (int warp = 0; warp < kProgramGroupWarps; ++warp) ring_.release(stage_);
    }
    ++stage_;
  }

 private:
  __device__ __forceinline__ void wait_empty(int stage) const {
    if (stage >= kRingSlots)
      wait_phase(ring_.empty + (stage & (kRingSlots - 1)), static_cast<unsigned>(stage / kRingSlots - 1) & 1u);
  }
  __device__ __forceinline__ void wait_window() const {
    if (stage_ >= window_) ring_.wait_full(stage_ - window_);
  }

  ProgramRing ring_;
  bool acts_;
  int stage_ = 0;
  int window_ = 4;
};

}  // namespace genai::cuda
