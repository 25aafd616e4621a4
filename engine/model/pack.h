// pack.h - from the blocks of a file to the tiles of packed_layout.h. Nothing is kept, all is pure: any number of
// threads may pack different strips of one matrix at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/model/file_matrix.h"

namespace genai {

// One matrix, or two of the same type and shape whose rows alternate: row 2i is row i of `first`, row 2i + 1 of
// `second`.
struct PackSource {
  FileMatrix first;
  std::optional<FileMatrix> second;

  std::int64_t rows() const { return second ? 2 * first.rows : first.rows; }
};

// Writes strips first_strip .. first_strip + strip_count - 1 of the packed matrix, padding included, to `destination`
// (which is where strip first_strip begins).
// REQUIRES: the strips exist; `second` has the type and shape of `first`; cols is a multiple of the type's block.
void pack_strips(const PackSource& source, std::int64_t first_strip, std::int64_t strip_count, std::byte* destination);

}  // namespace genai
