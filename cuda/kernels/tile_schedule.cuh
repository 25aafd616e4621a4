// tile_schedule.cuh - which parts of a product the blocks of matmul_tiles.cu and matmul_half_tiles.cu compute, and in
// which order.
//
// NOTE [Shares of a tiled product]
// A product is cut into items: the rows of weights and the columns (rows of activations) of one block, over all of K.
// K is walked by the remainders q = tile mod 8, because each has four of the 32 partials of the specification; an item
// is eight units, one a remainder. The grid is as many blocks as run at once, and block b takes items b, b + grid,
// b + 2 grid, ... The items that are left over after whole rounds are cut at remainders, so that all blocks work
// equally long: block b has the b-th run of `share_units` units of them. An item that runs over the end of a block's
// share is continued by the next block, which needs the sum so far. A block therefore begins with a piece that it only
// hands over, and ends with a piece for which it only needs a sum, which has then been there for long. A piece that is
// both, the c-th of its item, comes behind c whole items. Without whole items nothing is cut. Every piece waits for one
// of a lower block, all blocks run at once, and a block with a piece that is both has no other, so none waits forever.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/tile_ptx.cuh"

namespace genai::cuda {

inline constexpr int kUnits = 8;  // of an item: one for each four of the 32 partials

struct TileShares {
  int item_count;
  int whole_items;  // of each block
  int share_units;
};

inline TileShares tile_shares(std::int64_t item_count, int grid, int tile_count, bool may_cut) {
  const int whole = static_cast<int>(item_count / grid);
  const int rest = static_cast<int>(item_count % grid);
  const int even = (rest * kUnits + grid - 1) / grid;
  const bool cut = may_cut && whole > 0 && tile_count >= kUnits;
  return {static_cast<int>(item_count), whole, cut ? even : kUnits};
}

// What the longest working block has.
inline int longest_units(const TileShares& shares, int grid) {
  return shares.whole_items * kUnits + (shares.item_count % grid == 0 ? 0 : shares.share_units);
}

inline int working_blocks(const TileShares& shares, int grid) {
  return shares.item_count < grid ? shares.item_count : grid;
}

struct TilePiece {
  int item;  // -1: none
  int first_q;
  int end_q;
};

// The block's run of units of the items that are left over.
struct CutUnits {
  int begin;
  int end;

  __device__ __forceinline__ explicit CutUnits(const TileShares& shares) {
    const int units = (shares.item_count - shares.whole_items * static_cast<int>(gridDim.x)) * kUnits;
    begin = min(block_in_grid() * shares.share_units, units);
    end = min(begin + shares.share_units, units);
  }
};

// The block's piece number `index`; there are whole_items + 2, some of which are none.
__device__ __forceinline__ TilePiece tile_piece(const TileShares& shares, int index) {
  constexpr TilePiece kNone = {-1, 0, 0};
  const CutUnits cut(shares);
  const bool any = cut.begin < cut.end;
  const int item = shares.whole_items * static_cast<int>(gridDim.x) + cut.begin / kUnits;
  const int first_q = cut.begin % kUnits;
  const int end_q = (cut.end - 1) % kUnits + 1;  // of the last item
  const bool two = any && cut.begin / kUnits != (cut.end - 1) / kUnits;
  const bool both = any && !two && first_q > 0 && end_q < kUnits;
  // Whole items ahead of a piece that is both.
  const int ahead = min((first_q + shares.share_units - 1) / shares.share_units, shares.whole_items);
  if (both) {
    if (index == 0) return kNone;
    if (index == ahead + 1) return {item, first_q, end_q};
    if (index > ahead) --index;
  } else if (index == 0) {
    if (!any || end_q == kUnits) return kNone;
    return {two ? item + 1 : item, two ? 0 : first_q, end_q};
  } else if (index == shares.whole_items + 1) {
    if (!any || (!two && end_q < kUnits)) return kNone;
    return {item, first_q, kUnits};
  }
  return {block_in_grid() + (index - 1) * static_cast<int>(gridDim.x), 0, kUnits};
}

// The pieces of the block, one after the other.
struct TilePieces {
  TilePiece piece;
  int next_index;

  // False behind the last one.
  __device__ __forceinline__ bool next(const TileShares& shares) {
    piece.item = -1;
    while (next_index < shares.whole_items + 2 && piece.item < 0) piece = tile_piece(shares, next_index++);
    return piece.item >= 0;
  }
};

// Steps: one tile of K each.
__device__ __forceinline__ int steps_of_block(const TileShares& shares, int tile_count) {
  const CutUnits cut(shares);
  int steps = shares.whole_items * tile_count;
  for (int unit = cut.begin; unit < cut.end; ++unit)
    steps += (tile_count - unit % kUnits + kUnits - 1) / kUnits;  // none for a remainder beyond the tiles
  return steps;
}

}  // namespace genai::cuda
