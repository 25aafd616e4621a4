// program_ring.cuh - the ring of a program (NOTE [Program]): stages in the order in which they are consumed, numbered
// through the whole program. One warp copies; each stage is consumed by one group of warps.
//
// A stage has the slot of its number modulo kRingSlots, but a barrier of its own among kRingBarriers: a group may wait
// for a stage whose slot still has an earlier one on its way, and the parity of a slot's only barrier would let it pass
// a round early.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

inline constexpr int kRingSlots = 8;
inline constexpr int kRingBarriers = 128;
// Those of the ring and of the exchange.
inline constexpr int kProgramBarriers = kRingBarriers + kRingSlots + 6;
static_assert((kRingSlots & (kRingSlots - 1)) == 0 && (kRingBarriers & (kRingBarriers - 1)) == 0);

struct ProgramRing {
  unsigned char* slots;
  SharedBarrier* full;   // [kRingBarriers]
  SharedBarrier* empty;  // [kRingSlots], an arrival a consuming warp
  int slot_bytes;

  __device__ __forceinline__ unsigned char* slot(int stage) const {
    return slots + (stage & (kRingSlots - 1)) * slot_bytes;
  }
  __device__ __forceinline__ void wait_full(int stage) const {
    wait_phase(full + (stage & (kRingBarriers - 1)), static_cast<unsigned>(stage / kRingBarriers) & 1u);
  }
  // By one lane of each warp that reads the stage, when the warp has read it: those of one group, or all.
  __device__ __forceinline__ void release(int stage) const {
    arrive_times(empty + (stage & (kRingSlots - 1)), kProgramGroups);
  }
  __device__ __forceinline__ void release_shared(int stage) const { arrive(empty + (stage & (kRingSlots - 1))); }
};

// The warp that copies. It is one of eighteen and gets an instruction in every few cycles, so a copy must not
// take many: addresses in shared memory are 32 bits wide here, and lanes act one after the other in a loop.
class RingFeeder {
 public:
  __device__ __forceinline__ explicit RingFeeder(const ProgramRing& ring)
      : slots_(shared_address(ring.slots)),
        full_(shared_address(ring.full)),
        empty_(shared_address(ring.empty)),
        slot_bytes_(ring.slot_bytes),
        policy_(read_once_policy()) {}

  // At most so many stages on their way from now on.
  __device__ __forceinline__ void set_window(int stages) { window_ = stages; }

  // By all lanes: a stage for each of the first `lanes` lanes that has bytes, in the order of the lanes.
  __device__ __forceinline__ void copy_each(const void* source, unsigned bytes, int lanes) {
    const int lane = own_lane();
    const bool acts = lane < lanes && bytes > 0;
    const unsigned acting = __ballot_sync(0xffffffffu, acts);
    const int stage = stage_ + __popc(acting & ((1u << lane) - 1));
#pragma unroll 1
    for (int turn = 0; turn < lanes; ++turn) {
      if (acts && lane == turn) {
        wait_empty(stage);
        if (stage >= window_) wait_shared(full_address(stage - window_), full_parity(stage - window_));
        load_stage(stage, source, bytes);
      }
      __syncwarp();
    }
    stage_ += __popc(acting);
  }
  // A stage, by one lane; the others let as many pass.
  __device__ __forceinline__ void copy_one(const void* source, unsigned bytes) {
    wait_empty(stage_);
    if (stage_ >= window_) wait_shared(full_address(stage_ - window_), full_parity(stage_ - window_));
    load_stage(stage_, source, bytes);
    ++stage_;
  }
  __device__ __forceinline__ void pass(int stages) { stage_ += stages; }

 private:
  __device__ __forceinline__ unsigned full_address(int stage) const {
    return full_ + (static_cast<unsigned>(stage) & (kRingBarriers - 1)) * 8;
  }
  __device__ __forceinline__ static unsigned full_parity(int stage) {
    return static_cast<unsigned>(stage) / kRingBarriers & 1u;
  }
  __device__ __forceinline__ unsigned empty_address(int stage) const {
    return empty_ + (static_cast<unsigned>(stage) & (kRingSlots - 1)) * 8;
  }
  __device__ __forceinline__ void wait_empty(int stage) const {
    if (stage >= kRingSlots) wait_shared(empty_address(stage), (static_cast<unsigned>(stage) / kRingSlots & 1u) ^ 1u);
  }
  __device__ __forceinline__ void load_stage(int stage, const void* source, unsigned bytes) const {
    const unsigned slot =
        slots_ + (static_cast<unsigned>(stage) & (kRingSlots - 1)) * static_cast<unsigned>(slot_bytes_);
    expect_shared(full_address(stage), bytes);
    bulk_load_shared(slot, source, bytes, full_address(stage), policy_);
  }

  unsigned slots_;
  unsigned full_;
  unsigned empty_;
  int slot_bytes_;
  std::uint64_t policy_;
  int stage_ = 0;
  int window_ = 1;
};

}  // namespace genai::cuda
