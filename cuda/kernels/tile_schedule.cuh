// tile_schedule.cuh - which parts of a product the blocks of matmul_tiles.cu compute, and in which order.
//
// NOTE [Shares of a tiled product]
// A product is cut into items: the rows of weights and the columns (rows of activations) of one block, over all of K.
// K is walked by the remainders q = tile mod 8, because each has four of the 32 partials of the specification; an item
// is eight units, one a remainder. The grid is as many blocks as run at once, and block b takes items b, b + grid,
// b + 2 grid, ... The items that are left over after whole rounds are cut at remainders, so that all blocks work
// equally long: block b has the b-th run of `share_units` units of them. An item that runs over the end of a block's
// share is continued by the next block, which needs the sum so far. A block therefore begins with the piece that it
// hands over, then come its whole items, and last the piece for which it needs a sum; that has then been there for
// long; without whole items nothing is cut. A piece may be both; since it waits for a lower block's first piece only,
// there is always a block that can go on.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace genai::cuda {

inline constexpr int kUnits = 8;       // of an item: one for each four of the 32 partials
inline constexpr int kLeastShare = 4;  // units; less would only wait for each other

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
  return {static_cast<int>(item_count), whole, !cut ? kUnits : even < kLeastShare ? kLeastShare : even};
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

// The block's piece number `index`; there are whole_items + 2, some of which are none.
__device__ __forceinline__ TilePiece tile_piece(const TileShares& shares, int index) {
  const int block = static_cast<int>(blockIdx.x);
  const int grid = static_cast<int>(gridDim.x);
  if (index >= 1 && index <= shares.whole_items) return {block + (index - 1) * grid, 0, kUnits};
  const int units = (shares.item_count - shares.whole_items * grid) * kUnits;
  const int begin = min(block * shares.share_units, units);
  const int end = min(begin + shares.share_units, units);
  if (begin == end) return {-1, 0, 0};
  const int first_item = begin / kUnits;
  const int last_item = (end - 1) / kUnits;
  const int last_end = end - last_item * kUnits;
  const int item = shares.whole_items * grid;
  const bool two = first_item != last_item;
  if (index == 0) {
    if (last_end == kUnits) return {-1, 0, 0};
    return {item + last_item, two ? 0 : begin % kUnits, last_end};
  }
  if (!two && last_end != kUnits) return {-1, 0, 0};
  return {item + first_item, begin % kUnits, kUnits};
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

__device__ __forceinline__ int steps_of_piece(const TilePiece& piece, int tile_count) {
  int steps = 0;
  if (piece.item >= 0)
    for (int q = piece.first_q; q < min(piece.end_q, tile_count); ++q) steps += (tile_count - q + kUnits - 1) / kUnits;
  return steps;
}

// Steps: one tile of K each.
__device__ __forceinline__ int steps_of_block(const TileShares& shares, int tile_count) {
  return steps_of_piece(tile_piece(shares, 0), tile_count) + shares.whole_items * tile_count +
         steps_of_piece(tile_piece(shares, shares.whole_items + 1), tile_count);
}

}  // namespace genai::cuda
