#include "engine/model/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "engine/error.h"
#include "engine/model/printable_text.h"

namespace genai {
namespace {

constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitTensors = "split.tensors.count";
constexpr std::uint64_t kMaxParts = 4096;

// 0 for a file that is not part of a set.
std::uint64_t split_count(const GgufPart& part) {
  const std::uint64_t count = part.metadata->find_u64(kSplitCount).value_or(0);
  if (count > kMaxParts)
    part.metadata->reject(*part.metadata->find(kSplitCount), fmt::format("at most {} parts", kMaxParts));
  return count;
}

std::string part_suffix(std::uint64_t number, std::uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

void check_part(const GgufPart& part, std::uint64_t number, std::uint64_t count) {
  const GgufMetadata& metadata = *part.metadata;
  if (metadata.require_u64(kSplitCount) != count)
    metadata.reject(*metadata.find(kSplitCount), fmt::format("{}, as in the first part", count),
                    "the files are of different sets; fetch them again");
  if (metadata.require_u64(kSplitNumber) != number)
    metadata.reject(*metadata.find(kSplitNumber), fmt::format("{}, as the file's name says", number),
                    "the files were renamed; fetch them again");
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) {
  parts_.push_back(std::make_unique<GgufPart>(parse_gguf_part(std::make_unique<MappedFile>(path))));
  open_other_parts(path);
  index_tensors();
}

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string name) {
  parts_.push_back(std::make_unique<GgufPart>(parse_gguf_part(bytes, std::move(name))));
  const GgufPart& part = *parts_.front();
  if (split_count(part) > 1)
    part.metadata->reject(*part.metadata->find(kSplitCount), "1 for a model that is read from memory");
  index_tensors();
}

void GgufFile::open_other_parts(const std::filesystem::path& first) {
  const std::uint64_t count = split_count(*parts_.front());
  if (count <= 1) return;
  const GgufMetadata& metadata = *parts_.front()->metadata;
  const std::string file_name = first.filename().string();
  const std::uint64_t number = metadata.require_u64(kSplitNumber);
  if (number >= count) metadata.reject(*metadata.find(kSplitNumber), fmt::format("below {}", count));
  const std::string suffix = part_suffix(number, count);
  if (!file_name.ends_with(suffix))
    throw ModelFileError(first.string(),
                         fmt::format("is part {} of {}, but its name does not end in '{}'", number + 1, count, suffix),
                         "give the parts the names they were made with, in one folder");
  const std::string stem = file_name.substr(0, file_name.size() - suffix.size());
  if (number != 0)
    metadata.reject(*metadata.find(kSplitNumber), "0, the first part of the set",
                    fmt::format("open '{}'", (first.parent_path() / (stem + part_suffix(0, count))).string()));

  std::uint64_t tensor_count = parts_.front()->tensors.size();
  for (std::uint64_t i = 1; i < count; ++i) {
    const std::filesystem::path path = first.parent_path() / (stem + part_suffix(i, count));
    parts_.push_back(std::make_unique<GgufPart>(parse_gguf_part(std::make_unique<MappedFile>(path))));
    check_part(*parts_.back(), i, count);
    tensor_count += parts_.back()->tensors.size();
    if (tensor_count > kMaxGgufTensors)
      throw ModelFileError(path.string(), fmt::format("the set has more than {} tensors", kMaxGgufTensors));
  }
  const std::optional<std::uint64_t> promised = metadata.find_u64(kSplitTensors);
  if (promised && *promised != tensor_count)
    metadata.reject(*metadata.find(kSplitTensors), fmt::format("{}, the tensors of all parts", tensor_count),
                    "a part is missing tensors; fetch the set again");
}

void GgufFile::index_tensors() {
  for (const auto& part : parts_) {
    std::move(part->tensors.begin(), part->tensors.end(), std::back_inserter(tensors_));
    part->tensors.clear();
  }
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) by_name_.push_back(i);
  std::sort(by_name_.begin(), by_name_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return tensors_[a].name != tensors_[b].name ? tensors_[a].name < tensors_[b].name : a < b;
  });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    const TensorInfo& again = tensors_[by_name_[i]];
    if (again.name == tensors_[by_name_[i - 1]].name)
      throw ModelFileError(again.file, again.file_offset, "every tensor name once",
                           fmt::format("'{}' a second time", printable_text(again.name)));
  }
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [this](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  if (found == by_name_.end() || tensors_[*found].name != name) return nullptr;
  const TensorInfo& tensor = tensors_[*found];
  if (tensor.readable) return &tensor;
  std::string known;
  for (const DTypeInfo& info : kDTypes) known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  throw ModelFileError(tensor.file, tensor.file_offset,
                       fmt::format("tensor '{}' in a type that this build reads ({})", printable_text(name), known),
                       fmt::format("type {} ({})", tensor.type_number, tensor.type_name),
                       "download or convert the model in one of those types");
}

// The mapping that holds the tensor; null where the bytes are the caller's.
const MappedFile* GgufFile::mapping_of(const TensorInfo& tensor) const {
  for (const auto& part : parts_)
    if (tensor.file == part->file) return part->mapping.get();
  return nullptr;
}

void GgufFile::populate_pages(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) const {
  GENAI_EXPECT(begin <= tensor.bytes && count <= tensor.bytes - begin, "range lies outside the tensor");
  if (const MappedFile* mapping = mapping_of(tensor)) mapping->populate_pages(tensor.file_offset + begin, count);
}

void GgufFile::drop_pages(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) const {
  GENAI_EXPECT(begin <= tensor.bytes && count <= tensor.bytes - begin, "range lies outside the tensor");
  if (const MappedFile* mapping = mapping_of(tensor)) mapping->drop_pages(tensor.file_offset + begin, count);
}

void GgufFile::drop_all_pages() const {
  for (const auto& part : parts_)
    if (part->mapping != nullptr) part->mapping->drop_pages(0, part->bytes.size());
}

std::vector<std::string> GgufFile::part_paths() const {
  std::vector<std::string> paths;
  for (const auto& part : parts_) paths.push_back(part->file);
  return paths;
}

std::uint64_t GgufFile::file_bytes() const {
  std::uint64_t total = 0;
  for (const auto& part : parts_) total += part->bytes.size();
  return total;
}

}  // namespace genai
