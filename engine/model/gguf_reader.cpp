#include "engine/model/gguf_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/error.h"

namespace genai {

static_assert(std::endian::native == std::endian::little, "numbers are copied from the file as they are");

GgufReader::GgufReader(std::span<const std::byte> file_bytes, const std::string& file)
    : file_bytes_(file_bytes), file_(file), limit_(std::min<std::uint64_t>(file_bytes.size(), kMaxGgufHeaderBytes)) {}

std::span<const std::byte> GgufReader::take(std::uint64_t count, std::string_view what) {
  if (count > remaining()) fail_short(offset_, count, what);
  const std::span<const std::byte> taken = file_bytes_.subspan(offset_, count);
  offset_ += count;
  return taken;
}

std::string_view GgufReader::string(std::string_view what, std::uint64_t max_bytes) {
  const std::uint64_t at = offset_;
  const auto length = number<std::uint64_t>(what);
  if (length > max_bytes) fail(at, fmt::format("{} of at most {} bytes", what, max_bytes), fmt::format("{}", length));
  if (length > remaining()) fail_short(at, length, what);
  const std::span<const std::byte> text = take(length, what);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

void GgufReader::fail_short(std::uint64_t at, std::uint64_t count, std::string_view what) const {
  if (limit_ < file_bytes_.size())
    fail(at, fmt::format("a header that ends within {} MiB", kMaxGgufHeaderBytes >> 20),
         fmt::format("{} bytes of {} from byte {}", count, what, offset_));
  fail(at, fmt::format("{} bytes of {}", count, what), fmt::format("the end of the file at byte {}", limit_),
       "the file is damaged or cut short; fetch it again");
}

void GgufReader::fail(std::uint64_t at, std::string expected, std::string found, std::string hint) const {
  throw ModelFileError(file_, at, std::move(expected), std::move(found), std::move(hint));
}

}  // namespace genai
