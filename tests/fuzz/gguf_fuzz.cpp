// gguf_fuzz.cpp - any bytes as a GGUF file, then as a model: the answer is a file or a ModelFileError, never anything
// else. What was parsed is read through once, so that a view which leaves the input is seen by the sanitizers.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/error.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/model/rope_table.h"

namespace {

volatile unsigned g_sink;

void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += std::to_integer<unsigned>(byte);
  g_sink = sum;
}

template <class Read>
void try_to(Read read) {
  try {
    read();
  } catch (const genai::ModelFileError&) {
  }
}

void read_through(const genai::GgufFile& file) {
  const genai::GgufMetadata& metadata = file.metadata();
  for (const genai::GgufMetadata::Entry& entry : metadata.entries()) {
    touch(entry.bytes);
    genai::GgufMetadata::type_name(entry);
    genai::GgufMetadata::printable_value(entry);
    try_to([&] { metadata.find_u32(entry.key); });
    try_to([&] { metadata.find_i64(entry.key); });
    try_to([&] { metadata.find_f32(entry.key); });
    try_to([&] { metadata.find_bool(entry.key); });
    try_to([&] { metadata.find_string(entry.key); });
    try_to([&] { metadata.find_i64_array(entry.key); });
    try_to([&] { metadata.find_f32_array(entry.key); });
    try_to([&] { metadata.find_bool_array(entry.key); });
    try_to([&] { metadata.find_string_array(entry.key); });
  }
  for (const genai::TensorInfo& tensor : file.tensors()) {
    touch({tensor.data, static_cast<std::size_t>(tensor.bytes)});
    try_to([&] { file.require_tensor(tensor.name); });
    file.drop_pages(tensor, 0, tensor.bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The exact size on the heap: a byte behind the input is a byte behind the allocation.
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(begin, begin + size);
  try_to([&] {
    const genai::GgufFile file(bytes, "fuzz.gguf");
    read_through(file);
    const genai::ModelConfig config = genai::read_model_config(file);
    // Whatever the configuration admits, the tables can be made of it.
    std::vector<float> row(static_cast<std::size_t>(config.rotated));
    genai::fill_rope_table(config.rope, config.context_tokens - 1, 1, row);
    genai::fill_rope_table(config.local_rope, config.context_tokens - 1, 1, row);
  });
  return 0;
}
