// weight_check.h - looks at every weight of a file for NaN and infinity.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/tensor_file.h"

namespace genai::cli {

struct NonfiniteWeight {
  std::string tensor;
  std::int64_t block = 0;         // from the start of the tensor; of a float type an element
  std::uint64_t file_offset = 0;  // of that block
  std::string file;
};

// The first one of each tensor that has any, in file order. Tensors of types that cannot be read are passed over.
// `progress` is called between pieces; it may throw to give up.
std::vector<NonfiniteWeight> find_nonfinite_weights(
    const TensorFile& file, const std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>& progress);

}  // namespace genai::cli
