// gguf_file.h - a model in GGUF, version 2 or 3, in one file or in a split set ("...-00001-of-00003.gguf"; the first
// part is opened and brings the others). Mapped read-only; opening reads headers only. A file that is damaged, hostile
// or not understood is a ModelFileError within a second and little memory. Reading is safe from several threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/gguf_metadata.h"
#include "engine/model/gguf_part.h"
#include "engine/model/tensor_file.h"

namespace genai {

class GgufFile final : public TensorFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  // Bytes that the caller keeps alive; `name` stands for the path. A split set cannot be opened this way.
  GgufFile(std::span<const std::byte> bytes, std::string name);
  ~GgufFile() override = default;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const override { return parts_.front()->file; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const override;
  void populate_pages(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) const override;
  void drop_pages(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) const override;
  // The same for whole files, so also for metadata, of which the vocabulary is megabytes.
  void drop_all_pages() const;

  // Of the first part, which describes the model.
  const GgufMetadata& metadata() const { return *parts_.front()->metadata; }
  std::uint32_t version() const { return parts_.front()->version; }
  std::uint64_t alignment() const { return parts_.front()->alignment; }
  // In order; one unless the model is split.
  std::vector<std::string> part_paths() const;
  // Of all parts together.
  std::uint64_t file_bytes() const;

 private:
  void open_other_parts(const std::filesystem::path& first);
  void index_tensors();
  const MappedFile* mapping_of(const TensorInfo& tensor) const;

  std::vector<std::unique_ptr<GgufPart>> parts_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint32_t> by_name_;  // indices into tensors_, in the order of their names
};

}  // namespace genai
