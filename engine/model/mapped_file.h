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
  // Both REQUIRE that [offset, offset + count) is inside the file, and are advice.
  // Reads these pages and maps them, in one call where touching them would fault some thousand times.
  void populate_pages(std::uint64_t offset, std::uint64_t count) const;
  // Gives the pages back to the system; they are read from the file when needed.
  void drop_pages(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace genai
