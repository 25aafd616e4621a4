// mapped_file.h - a regular file mapped read-only. Opening never blocks (a FIFO is refused, not waited for) and every
// reason for not getting the bytes is its own ModelFileError. The length is that of the moment of opening; a file that
// somebody shortens afterwards faults when read, as with every mapping.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace genai {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the pages that hold [offset, offset + count) back to the system; they are read from the file when needed.
  // REQUIRES: the range is inside the file.
  void drop_pages(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace genai
