#include "engine/model/gguf_part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/dtype.h"
#include "engine/model/gguf_reader.h"
#include "engine/model/gguf_types.h"
#include "engine/model/printable_text.h"

namespace genai {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kTensorCountOffset = 8;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMinAlignment = 8;    // of the format; also keeps numbers aligned
constexpr std::uint64_t kMaxNameBytes = 255;  // four times what the format allows
constexpr std::uint64_t kSmallestTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // name length, name, rank, one dimension, type, offset
constexpr std::uint32_t kMaxDimensions = 4;

std::uint32_t read_version(GgufReader& reader) {
  const auto magic = reader.number<std::uint32_t>("the magic \"GGUF\"");
  if (magic != kMagic) {
    const char* text = reinterpret_cast<const char*>(&magic);
    reader.fail(0, "the magic \"GGUF\"", '"' + printable_text({text, sizeof magic}) + '"', "this is no GGUF file");
  }
  const auto version = reader.number<std::uint32_t>("a version");
  if (version == 2 || version == 3) return version;
  if ((version & 0xffffu) == 0 && version != 0)
    reader.fail(4, "a little-endian file", fmt::format("version {}, as big-endian files have it", version),
                "convert the file to little-endian byte order");
  reader.fail(4, "version 2 or 3", fmt::format("version {}", version), "convert the model again with a current tool");
}

std::uint64_t read_alignment(const GgufMetadata& metadata) {
  const GgufMetadata::Entry* entry = metadata.find("general.alignment");
  if (entry == nullptr) return kDefaultAlignment;
  if (entry->type != GgufValueType::u32) metadata.reject(*entry, "of type u32");
  const std::uint32_t alignment = metadata.require_u32("general.alignment");
  if (alignment < kMinAlignment || (alignment & (alignment - 1)) != 0)
    metadata.reject(*entry, fmt::format("a power of two of at least {}", kMinAlignment));
  return alignment;
}

GgufTensorType read_tensor_type(GgufReader& reader, const TensorInfo& tensor) {
  const std::uint64_t at = reader.offset();
  const auto number = reader.number<std::uint32_t>("a tensor type");
  const std::optional<GgufTensorType> type = find_gguf_tensor_type(number);
  if (!type) {
    std::vector<std::string_view> readable;
    for (const DTypeInfo& info : kDTypes) readable.push_back(info.name);
    reader.fail(at, fmt::format("a known type of tensor '{}'", printable_text(tensor.name)),
                fmt::format("type number {}", number), fmt::format("this build reads {}", fmt::join(readable, ", ")));
  }
  return *type;
}

// Sets shape, type and bytes; the product of the dimensions is checked for overflow on the way.
void read_shape_and_type(GgufReader& reader, TensorInfo& tensor) {
  const auto name = [&] { return printable_text(tensor.name); };
  const std::uint64_t rank_at = reader.offset();
  const auto rank = reader.number<std::uint32_t>("a number of dimensions");
  if (rank < 1 || rank > kMaxDimensions)
    reader.fail(rank_at, fmt::format("1 to {} dimensions of tensor '{}'", kMaxDimensions, name()),
                fmt::format("{}", rank));
  const std::uint64_t shape_at = reader.offset();
  for (std::uint32_t i = 0; i < rank; ++i) {
    const std::uint64_t at = reader.offset();
    tensor.shape.push_back(reader.number<std::uint64_t>("a dimension"));
    if (tensor.shape.back() == 0) reader.fail(at, fmt::format("dimension {} of tensor '{}' above 0", i, name()), "0");
  }
  const GgufTensorType type = read_tensor_type(reader, tensor);
  tensor.type_name = type.name;
  tensor.type_number = type.number;
  tensor.readable = find_dtype(type.number).has_value();
  if (tensor.readable) tensor.dtype = static_cast<DType>(type.number);

  if (tensor.shape[0] % type.block_elements != 0)
    reader.fail(shape_at,
                fmt::format("a multiple of {} elements, the block of {}, in a row of tensor '{}'", type.block_elements,
                            type.name, name()),
                fmt::format("{}", tensor.shape[0]));
  // Elements are at most 8 times the bytes of any type, so a limit on elements is one on what later sums can reach.
  std::uint64_t element_count = 1;
  bool overflow = false;
  for (const std::uint64_t dimension : tensor.shape)
    overflow |= __builtin_mul_overflow(element_count, dimension, &element_count);
  overflow |= __builtin_mul_overflow(element_count / type.block_elements, type.block_bytes, &tensor.bytes);
  if (overflow)
    reader.fail(shape_at, fmt::format("fewer than 2^64 bytes in tensor '{}'", name()),
                fmt::format("dimensions {}", fmt::join(tensor.shape, " x ")));
}

// `offset` is relative to the data, whose place is known only after the table.
struct TableEntry {
  TensorInfo tensor;
  std::uint64_t offset;
  std::uint64_t offset_at;
};

TableEntry read_table_entry(GgufReader& reader, std::uint64_t alignment) {
  TableEntry entry{};
  const std::uint64_t name_at = reader.offset();
  entry.tensor.name = reader.string("a tensor name", kMaxNameBytes);
  if (entry.tensor.name.empty()) reader.fail(name_at, "a tensor name of at least one byte", "an empty name");
  read_shape_and_type(reader, entry.tensor);
  entry.offset_at = reader.offset();
  entry.offset = reader.number<std::uint64_t>("a tensor offset");
  if (entry.offset % alignment != 0)
    reader.fail(
        entry.offset_at,
        fmt::format("an offset of tensor '{}' that is a multiple of {}", printable_text(entry.tensor.name), alignment),
        fmt::format("{}", entry.offset));
  return entry;
}

void place_tensor(const GgufReader& reader, const GgufPart& part, TableEntry& entry) {
  TensorInfo& tensor = entry.tensor;
  const auto name = [&] { return printable_text(tensor.name); };
  const std::uint64_t file_bytes = part.bytes.size();
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  if (__builtin_add_overflow(part.data_offset, entry.offset, &begin) ||
      __builtin_add_overflow(begin, tensor.bytes, &end))
    reader.fail(entry.offset_at, fmt::format("tensor '{}' to end below byte 2^64", name()),
                fmt::format("offset {} and {} bytes", entry.offset, tensor.bytes));
  if (end > file_bytes)
    reader.fail(begin, fmt::format("{} bytes of tensor '{}' ({})", tensor.bytes, name(), tensor.type_name),
                fmt::format("the end of the file at byte {}", file_bytes),
                fmt::format("the file is cut short: it needs at least {} bytes; fetch it again", end));
  tensor.data = part.bytes.data() + begin;
  tensor.file = part.file;
  tensor.file_offset = begin;
}

void check_overlaps(const GgufReader& reader, const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->file_offset < b->file_offset; });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& before = *by_offset[i - 1];
    const TensorInfo& after = *by_offset[i];
    const std::uint64_t end = before.file_offset + before.bytes;
    if (after.file_offset < end)
      reader.fail(after.file_offset,
                  fmt::format("tensor '{}' to begin at byte {} or later, behind tensor '{}'",
                              printable_text(after.name), end, printable_text(before.name)),
                  "the two overlap");
  }
}

void parse(GgufPart& part) {
  GgufReader reader(part.bytes, part.file);
  part.version = read_version(reader);
  const auto tensor_count = reader.number<std::uint64_t>("a tensor count");
  const auto pair_count = reader.number<std::uint64_t>("a metadata count");
  const std::uint64_t most_tensors = std::min(kMaxGgufTensors, reader.remaining() / kSmallestTensorBytes);
  if (tensor_count > most_tensors)
    reader.fail(kTensorCountOffset,
                fmt::format("at most {} tensors ({} bytes are left)", most_tensors, reader.remaining()),
                fmt::format("{}", tensor_count), "the file is damaged or cut short; fetch it again");
  part.metadata.emplace(reader, pair_count, part.file);
  part.alignment = read_alignment(*part.metadata);

  std::vector<TableEntry> table;
  for (std::uint64_t i = 0; i < tensor_count; ++i) table.push_back(read_table_entry(reader, part.alignment));
  part.data_offset = (reader.offset() + part.alignment - 1) / part.alignment * part.alignment;
  for (TableEntry& entry : table) {
    place_tensor(reader, part, entry);
    part.tensors.push_back(std::move(entry.tensor));
  }
  check_overlaps(reader, part.tensors);
}

}  // namespace

GgufPart parse_gguf_part(std::unique_ptr<MappedFile> mapping) {
  GgufPart part;
  part.file = mapping->path();
  part.bytes = mapping->bytes();
  part.mapping = std::move(mapping);
  parse(part);
  return part;
}

GgufPart parse_gguf_part(std::span<const std::byte> bytes, std::string name) {
  GgufPart part;
  part.file = std::move(name);
  part.bytes = bytes;
  parse(part);
  return part;
}

}  // namespace genai
