// gguf_part.h - one GGUF file, parsed and checked: header, metadata, tensor table. A model is one part or several
// (gguf_file.h). Nothing of the file is trusted: counts, lengths, types, dimensions, products and offsets are checked
// against the bytes that are there before anything is allocated or read by them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/gguf_metadata.h"
#include "engine/model/mapped_file.h"
#include "engine/model/tensor_file.h"

namespace genai {

// Of one model; ten times what the largest mixture of experts has, and a bound on the memory of a hostile table.
inline constexpr std::uint64_t kMaxGgufTensors = 65536;

struct GgufPart {
  std::string file;
  std::unique_ptr<MappedFile> mapping;  // null where the bytes are the caller's
  std::span<const std::byte> bytes;
  std::uint32_t version = 0;
  std::uint64_t alignment = 0;
  std::uint64_t data_offset = 0;  // where the tensors' bytes begin
  std::optional<GgufMetadata> metadata;
  std::vector<TensorInfo> tensors;
};

// Throws ModelFileError.
GgufPart parse_gguf_part(std::unique_ptr<MappedFile> mapping);
// The caller keeps the bytes alive.
GgufPart parse_gguf_part(std::span<const std::byte> bytes, std::string name);

}  // namespace genai
