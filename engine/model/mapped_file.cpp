#include "engine/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine/error.h"

namespace genai {
namespace {

std::string system_message(int error) { return std::generic_category().message(error); }

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;
#endif

struct Descriptor {
  int number;
  ~Descriptor() { ::close(number); }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  // Without O_NONBLOCK the open of a FIFO waits for a writer.
  const int opened = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (opened < 0) {
    const int error = errno;
    if (error == ENOENT) throw ModelFileError(path_, "no such file", "check the path of the model");
    if (error == EACCES || error == EPERM)
      throw ModelFileError(path_, "may not be read: " + system_message(error), "check the file's permissions");
    throw ModelFileError(path_, "cannot be opened: " + system_message(error), "check the path of the model");
  }
  const Descriptor descriptor{opened};

  struct stat status {};
  if (::fstat(opened, &status) != 0) throw ModelFileError(path_, "cannot be examined: " + system_message(errno));
  if (!S_ISREG(status.st_mode))
    throw ModelFileError(path_, std::string("is ") + kind_of(status.st_mode) + ", not a regular file",
                         "a GGUF model is one file (or the first part of a set of files)");
  if (status.st_size <= 0) throw ModelFileError(path_, "is empty", "the download did not start; fetch it again");

  const auto size = static_cast<std::size_t>(status.st_size);
  void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened, 0);
  if (mapping == MAP_FAILED) throw ModelFileError(path_, "cannot be mapped into memory: " + system_message(errno));
  bytes_ = {static_cast<const std::byte*>(mapping), size};
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void MappedFile::populate_pages(std::uint64_t offset, std::uint64_t count) const {
  GENAI_EXPECT(offset <= bytes_.size() && count <= bytes_.size() - offset, "range lies outside the mapping");
  if (count == 0) return;
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uint64_t>(bytes_.data()) + offset) / page_bytes * page_bytes;
  const auto end = reinterpret_cast<std::uint64_t>(bytes_.data()) + offset + count;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);  // unknown before Linux 5.14: they fault
}

void MappedFile::drop_pages(std::uint64_t offset, std::uint64_t count) const {
  GENAI_EXPECT(offset <= bytes_.size() && count <= bytes_.size() - offset, "range lies outside the mapping");
  if (count == 0) return;
  // Whole pages, the shared ones at both ends too: the mapping is never written, so nothing can be lost. And whole huge
  // pages: where the file is cached in such, one access brings back all of one, also what was dropped before.
  constexpr std::uint64_t kLargestPageBytes = std::uint64_t{2} << 20;
  const auto base = reinterpret_cast<std::uint64_t>(bytes_.data());
  const std::uint64_t begin = std::max(base, (base + offset) / kLargestPageBytes * kLargestPageBytes);
  const std::uint64_t end = (base + offset + count + kLargestPageBytes - 1) / kLargestPageBytes * kLargestPageBytes;
  ::madvise(reinterpret_cast<void*>(begin), std::min(end, base + bytes_.size()) - begin, MADV_DONTNEED);
}

}  // namespace genai
