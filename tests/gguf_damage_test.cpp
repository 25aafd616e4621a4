// Damaged and hostile files: each is refused with the place, what was expected and what was found, and at little cost.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model_config.h"
#include "tests/catch.h"
#include "tests/gguf_failure.h"
#include "tests/gguf_writer.h"
#include "tests/shared_data.h"

using namespace genai;
using namespace genai::test;

namespace {

// Processor time and growth of the resident set of `action`, measured in a child so that nothing else counts.
struct Cost {
  double seconds = 1e9;
  double megabytes = 1e9;
};
Cost cost_of(const std::function<void()>& action) {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto usage = [] {
      struct rusage now {};
      ::getrusage(RUSAGE_SELF, &now);
      return now;
    };
    const auto seconds = [](const struct rusage& at) {
      return static_cast<double>(at.ru_utime.tv_sec + at.ru_stime.tv_sec) +
             1e-6 * static_cast<double>(at.ru_utime.tv_usec + at.ru_stime.tv_usec);
    };
    const struct rusage before = usage();
    bool refused = false;
    try {
      action();
    } catch (const ModelFileError&) {
      refused = true;
    }
    const struct rusage after = usage();
    const Cost cost{seconds(after) - seconds(before), static_cast<double>(after.ru_maxrss - before.ru_maxrss) / 1024};
    const bool sent = refused && ::write(pipe_ends[1], &cost, sizeof cost) == sizeof cost;
    ::_exit(sent ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  Cost cost;
  const ssize_t received = ::read(pipe_ends[0], &cost, sizeof cost);
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(received == sizeof cost);
  CHECK(status == 0);
  return cost;
}
void check_cheap(const std::function<void()>& action) {
  const Cost cost = cost_of(action);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kOverhead = 6.0;  // of a sanitizer, in time and in memory
#else
  constexpr double kOverhead = 1.0;
#endif
  CHECK(cost.seconds < kOverhead);
  CHECK(cost.megabytes < 100.0 * kOverhead);
}

std::vector<std::filesystem::path> reference_files() {
  std::vector<std::filesystem::path> files;
  if (const auto folder = shared_data("reference/tiny"))
    for (const auto& entry : std::filesystem::directory_iterator(*folder))
      if (entry.path().extension() == ".gguf") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("gguf magic, version and byte order are checked", "[gguf]") {
  const GgufImage good = two_tensors().build();
  GgufImage image = good;
  std::memcpy(image.bytes.data(),
              "\x7f"
              "ELF",
              4);
  check_failure(failure_of(image), 0, "the magic \"GGUF\"", "\"\\x7fELF\"");
  check_failure(failure_of(GgufImage(good).poke("version", std::uint32_t{1})), 4, "version 2 or 3", "version 1");
  check_failure(failure_of(GgufImage(good).poke("version", std::uint32_t{4})), 4, "version 2 or 3", "version 4");
  check_failure(failure_of(GgufImage(good).poke("version", std::uint32_t{0})), 4, "version 2 or 3", "version 0");
  check_failure(failure_of(GgufImage(good).poke("version", std::uint32_t{3u << 24})), 4, "a little-endian file",
                "version 50331648");
}

TEST_CASE("gguf cut at every byte of its header and data is refused", "[gguf]") {
  GgufWriter writer = two_tensors();
  writer.strings("words", {"one", "two"}).u32("count", 1).numbers("list", GgufValueType::i32, std::vector<int>{1, 2});
  const GgufImage image = writer.build();
  for (std::uint64_t size = 0; size < image.bytes.size(); ++size) {
    const Failure failure = failure_of(image.first(size));
    INFO(size << ": " << failure.message);
    CHECK(failure.offset <= size + 32);  // a tensor's place may lie behind the end
  }
  CHECK_NOTHROW(GgufFile(image.first(image.bytes.size()), "whole"));
}

TEST_CASE("gguf reference files open whole and are refused at every tenth of their length", "[gguf]") {
  const std::vector<std::filesystem::path> files = reference_files();
  if (files.empty()) GENAI_SKIP("no reference/tiny in the shared data");
  for (const std::filesystem::path& path : files) {
    INFO(path);
    CHECK(GgufFile(path).tensors().size() > 20);
    const std::vector<std::byte> bytes = contents(path);
    for (std::size_t tenth = 1; tenth < 10; ++tenth) {
      const std::size_t size = bytes.size() * tenth / 10;
      const Failure failure = failure_of(std::span(bytes).first(size));
      INFO(failure.message);
      CHECK(failure.says("found the end of the file at byte " + std::to_string(size)));
      CHECK(failure.says("bytes of tensor '"));
      CHECK(failure.hint.find("fetch it again") != std::string::npos);
    }
    // A part of the last tensor.
    CHECK(failure_of(std::span(bytes).first(bytes.size() - 33)).says("bytes of tensor '"));
  }
}

TEST_CASE("gguf counts beyond the file are refused before anything is read", "[gguf]") {
  const GgufImage good = two_tensors().build();
  for (const std::uint64_t count : {1ull << 60, ~0ull, 1ull << 32, 70000ull}) {
    const Failure tensors = failure_of(GgufImage(good).poke("tensor_count", count));
    check_failure(tensors, 8, "at most", std::to_string(count));
    CHECK(tensors.says("tensors"));
    const Failure pairs = failure_of(GgufImage(good).poke("pair_count", count));
    check_failure(pairs, 16, "at most", std::to_string(count));
    CHECK(pairs.says("metadata pairs"));
  }
}

TEST_CASE("gguf string lengths past the end are refused", "[gguf]") {
  const GgufImage good = two_tensors().string("note", "text").build();
  for (const std::uint64_t length : {1ull << 60, ~0ull, ~0ull - 7, 100000ull}) {
    const std::string found = std::to_string(length);
    check_failure(failure_of(GgufImage(good).poke("key:note", length)), good.at("key:note"), "a key of at most", found);
    check_failure(failure_of(GgufImage(good).poke("value:note", length)), good.at("value:note"),
                  found + " bytes of a string", "the end of the file at byte");
    check_failure(failure_of(GgufImage(good).poke("name:second", length)), good.at("name:second"),
                  "a tensor name of at most", found);
  }
  const GgufImage long_name = GgufWriter().f32_tensor(std::string(256, 'n'), {1}, {1}).build();
  check_failure(failure_of(long_name), 24, "a tensor name of at most 255 bytes", "256");
  check_failure(failure_of(GgufImage(good).poke("key:note", std::uint64_t{0})), good.at("key:note"),
                "a key of at least one byte", "an empty key");
  check_failure(failure_of(GgufImage(good).poke("name:second", std::uint64_t{0})), good.at("name:second"),
                "a tensor name of at least one byte", "an empty name");
}

TEST_CASE("gguf array lengths past the end are refused", "[gguf]") {
  const GgufImage strings = two_tensors().strings("list", {"one", "two"}).build();
  const GgufImage numbers =
      two_tensors().numbers("list", GgufValueType::u16, std::vector<std::uint16_t>{1, 2, 3}).build();
  for (const GgufImage& good : {strings, numbers}) {
    for (const std::uint64_t length : {1ull << 63, ~0ull, 1ull << 60, 5000ull})
      check_failure(failure_of(GgufImage(good).poke("value:list", length, 4)), good.at("value:list") + 4, "at most",
                    std::to_string(length));
  }
  // The second string of the array.
  check_failure(failure_of(GgufImage(strings).poke("value:list", ~0ull, 4 + 8 + 8 + 3)), strings.at("value:list") + 23,
                "18446744073709551615 bytes of a string of an array", "the end of the file at byte");
}

TEST_CASE("gguf value types that do not exist and arrays of arrays are refused", "[gguf]") {
  const GgufImage good = two_tensors().u32("count", 1).strings("list", {"one"}).boolean("flag", true).build();
  check_failure(failure_of(GgufImage(good).poke("type:count", std::uint32_t{13})), good.at("type:count"),
                "a value type of 0 to 12 for 'count'", "13");
  check_failure(failure_of(GgufImage(good).poke("value:list", std::uint32_t{99})), good.at("value:list"),
                "a value type of 0 to 12 for 'list'", "99");
  check_failure(failure_of(GgufImage(good).poke("value:list", std::uint32_t{9})), good.at("value:list"),
                "numbers or strings in the array 'list'", "an array of arrays");
  check_failure(failure_of(GgufImage(good).poke("value:flag", std::uint8_t{2})), good.at("value:flag"),
                "0 or 1 for the bool 'flag'", "2");
}

TEST_CASE("gguf alignment must be a u32 and a power of two", "[gguf]") {
  for (const std::uint32_t alignment : {0u, 3u, 4u, 48u, ~0u}) {
    const GgufImage image = two_tensors().u32("general.alignment", alignment).build();
    check_failure(failure_of(image), image.at("value:general.alignment"),
                  "'general.alignment' to be a power of two of at least 8", std::to_string(alignment));
  }
  const GgufImage wide = two_tensors().u64("general.alignment", 32).build();
  check_failure(failure_of(wide), wide.at("value:general.alignment"), "'general.alignment' to be of type u32", "32");
  const GgufImage text = two_tensors().string("general.alignment", "32").build();
  check_failure(failure_of(text), text.at("value:general.alignment") + 8, "'general.alignment' to be of type u32",
                "32");
  // Larger than the file: the data would begin behind its end.
  const GgufImage large = two_tensors().u32("general.alignment", 1u << 31).build();
  CHECK(failure_of(large).says("multiple of 2147483648"));
  const GgufImage beyond = GgufWriter().u32("general.alignment", 1u << 31).f32_tensor("only", {2}, {1, 2}).build();
  check_failure(failure_of(beyond), 1u << 31, "8 bytes of tensor 'only' (F32)",
                "the end of the file at byte " + std::to_string(beyond.bytes.size()));
}

TEST_CASE("gguf number of dimensions is 1 to 4 and none of them is zero", "[gguf]") {
  const GgufImage good = two_tensors().build();
  for (const std::uint32_t rank : {0u, 5u, 9u, ~0u})
    check_failure(failure_of(GgufImage(good).poke("rank:first", rank)), good.at("rank:first"),
                  "1 to 4 dimensions of tensor 'first'", std::to_string(rank));
  check_failure(failure_of(GgufImage(good).poke("shape:first", std::uint64_t{0}, 8)), good.at("shape:first") + 8,
                "dimension 1 of tensor 'first' above 0", "0");
}

TEST_CASE("gguf dimension products that wrap are refused", "[gguf]") {
  GgufWriter writer;
  writer.tensor("only", {32, 2, 2, 2}, kF32);
  const GgufImage good = writer.build();
  const auto with_shape = [&](std::vector<std::uint64_t> shape) {
    GgufImage image = good;
    for (std::size_t i = 0; i < 4; ++i) image.poke("shape:only", shape[i], 8 * i);
    return image;
  };
  const std::uint64_t large = (1ull << 42) + 1;
  // 2^62 elements fit in 64 bits, their bytes do not: 2^64 + something wraps to little.
  for (const std::vector<std::uint64_t>& shape : {std::vector<std::uint64_t>{large, 1ull << 20, 1, 1},
                                                  {large, large, 1, 1},
                                                  {1ull << 32, 1ull << 32, 1, 1},
                                                  {1ull << 62, 1, 1, 1},
                                                  {32, ~0ull, ~0ull, ~0ull}}) {
    const Failure failure = failure_of(with_shape(shape));
    check_failure(failure, good.at("shape:only"), "fewer than 2^64 bytes in tensor 'only'", "dimensions");
    CHECK(failure.says(std::to_string(shape[0]) + " x " + std::to_string(shape[1])));
  }
  // Does not wrap, and is not there.
  const Failure big = failure_of(with_shape({large, 1, 1, 1}));
  check_failure(big, good.at("data:only"), std::to_string(4 * large) + " bytes of tensor 'only'",
                "the end of the file");
}

TEST_CASE("gguf rows must be whole blocks", "[gguf]") {
  GgufWriter writer;
  writer.tensor("only", {320, 4}, kQ4K, std::vector<std::byte>(1024));
  const GgufImage image = writer.build();
  check_failure(failure_of(image), image.at("shape:only"), "a multiple of 256 elements, the block of Q4_K", "320");
}

TEST_CASE("gguf tensor offsets must be aligned and inside the file", "[gguf]") {
  const GgufImage good = two_tensors().build();
  check_failure(failure_of(GgufImage(good).poke("offset:second", std::uint64_t{33})), good.at("offset:second"),
                "an offset of tensor 'second' that is a multiple of 32", "33");
  const std::uint64_t last = ~0ull - 31;
  check_failure(failure_of(GgufImage(good).poke("offset:second", last)), good.at("offset:second"),
                "tensor 'second' to end below byte 2^64", "offset " + std::to_string(last));
  const Failure far = failure_of(GgufImage(good).poke("offset:second", std::uint64_t{1} << 40));
  CHECK(far.says("204 bytes of tensor 'second' (Q8_0), found the end of the file at byte"));
}

TEST_CASE("gguf duplicate keys and tensor names are refused", "[gguf]") {
  GgufWriter keys = two_tensors();
  keys.u32("count", 1).add_again("count", GgufValueType::u32, std::vector<std::byte>(4));
  const GgufImage image = keys.build();
  check_failure(failure_of(image), image.at("value:count"), "every key once", "'count' a second time");
  GgufWriter names = two_tensors();
  names.f32_tensor("first", {2}, {1, 2});
  const GgufImage twice = names.build();
  check_failure(failure_of(twice), twice.at("data:first"), "every tensor name once", "'first' a second time");
}

TEST_CASE("gguf overlapping tensors are refused", "[gguf]") {
  const GgufImage good = two_tensors().build();
  const Failure same = failure_of(GgufImage(good).poke("offset:second", std::uint64_t{0}));
  check_failure(same, good.at("data:first"), "tensor '", "the two overlap");
  GgufWriter writer;
  writer.tensor("long", {64}, kF32).tensor("short", {8}, kF32);
  const GgufImage image = writer.build();
  const Failure inside = failure_of(GgufImage(image).poke("offset:short", std::uint64_t{224}));
  check_failure(inside, image.at("data:long") + 224, "tensor 'short' to begin at byte", "the two overlap");
}

TEST_CASE("gguf tensor type numbers that nobody has given out are refused", "[gguf]") {
  const GgufImage good = two_tensors().build();
  for (const std::uint32_t type : {4u, 5u, 31u, 1000u, ~0u}) {
    const Failure failure = failure_of(GgufImage(good).poke("tensor_type:second", type));
    check_failure(failure, good.at("tensor_type:second"), "a known type of tensor 'second'",
                  "type number " + std::to_string(type));
    CHECK(failure.hint.find("Q4_K") != std::string::npos);
  }
}

TEST_CASE("gguf hostile files cost less than a second and 100 MB", "[gguf]") {
  const TemporaryFolder folder;
  const auto open = [](const std::filesystem::path& path) { return [path] { GgufFile file(path); }; };

  SECTION("an array of 2^63 elements in a file of 49 bytes") {
    for (const GgufValueType type : {GgufValueType::u8, GgufValueType::string, GgufValueType::f64}) {
      std::vector<std::byte> head;
      append_number(head, static_cast<std::uint32_t>(type));
      append_number(head, 1ull << 63);
      const GgufImage image = GgufWriter().set("k", GgufValueType::array, head).build();
      REQUIRE(image.bytes.size() == 49);
      check_failure(failure_of(image), 41, "at most 0 elements in 'k' (0 bytes are left)", "9223372036854775808");
      image.write(folder / "array.gguf");
      check_cheap(open(folder / "array.gguf"));
      std::filesystem::resize_file(folder / "array.gguf", 43);
      check_cheap(open(folder / "array.gguf"));
    }
  }
  SECTION("counts of 2^60") {
    const GgufImage good = two_tensors().build();
    GgufImage(good).poke("tensor_count", 1ull << 60).write(folder / "tensors.gguf");
    GgufImage(good).poke("pair_count", 1ull << 60).write(folder / "pairs.gguf");
    check_cheap(open(folder / "tensors.gguf"));
    check_cheap(open(folder / "pairs.gguf"));
  }
  SECTION("as many empty strings as a header holds") {
    // Sparse: eight zero bytes are one empty string.
    for (const std::uint64_t count : {7ull << 20, 1ull << 24}) {
      std::vector<std::byte> head;
      append_number(head, static_cast<std::uint32_t>(GgufValueType::string));
      append_number(head, count);
      GgufImage image = GgufWriter().set("k", GgufValueType::array, head).build();
      image.poke("tensor_count", std::uint64_t{1}).write(folder / "strings.gguf");
      std::filesystem::resize_file(folder / "strings.gguf", 1ull << 30);
      check_cheap(open(folder / "strings.gguf"));
    }
  }
  SECTION("a gigabyte of zeros as keys") {
    GgufImage image = GgufWriter().build();
    image.poke("pair_count", std::uint64_t{65536}).write(folder / "keys.gguf");
    std::filesystem::resize_file(folder / "keys.gguf", 1ull << 30);
    check_cheap(open(folder / "keys.gguf"));
  }
  SECTION("as many keys and tensors as allowed, the last one twice") {
    GgufWriter writer;
    for (int i = 0; i < 65536; ++i) writer.add_again("key" + std::to_string(i), GgufValueType::u8, {std::byte{}});
    for (int i = 0; i < 65536; ++i)
      writer.tensor("tensor" + std::to_string(std::min(i, 65534)) + std::string(240, 'x'), {8}, kF32);
    writer.build().write(folder / "many.gguf");
    check_cheap(open(folder / "many.gguf"));
  }
  SECTION("a header that never ends") {
    GgufWriter writer;
    writer.string("long", std::string(70u << 20, 'x'));
    writer.build().write(folder / "long.gguf");
    check_cheap(open(folder / "long.gguf"));
    CHECK(failure_of([&] { GgufFile file(folder / "long.gguf"); }).says("64 MiB"));
  }
}

TEST_CASE("gguf seeds of the fuzzer parse or are refused", "[gguf]") {
#ifdef GENAI_SOURCE_DIR
  const std::filesystem::path folder = std::filesystem::path(GENAI_SOURCE_DIR) / "tests/fuzz/corpus/gguf";
#else
  const std::filesystem::path folder = "tests/fuzz/corpus/gguf";
#endif
  int parsed = 0;
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    try {
      const GgufFile file(entry.path());
      read_model_config(file);
      ++parsed;
    } catch (const ModelFileError&) {
      ++refused;
    }
  }
  CHECK(parsed >= 4);
  CHECK(refused >= 1);
}

// Run by name to write the seeds again: genai_tests "write the seeds of the fuzzer".
TEST_CASE("write the seeds of the fuzzer", "[.]") {
  const std::filesystem::path folder = "tests/fuzz/corpus/gguf";
  std::filesystem::create_directories(folder);
  for (const std::string architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    GgufWriter writer = model_header(architecture);
    writer.u32(architecture + ".attention.sliding_window", 8).u32("general.alignment", 32);
    writer.string(architecture + ".rope.scaling.type", architecture == "qwen2" ? "yarn" : "linear");
    writer.f32(architecture + ".rope.scaling.factor", 4.0f).boolean("tokenizer.ggml.add_bos_token", true);
    writer.numbers("tokenizer.ggml.token_type", GgufValueType::i32, std::vector<std::int32_t>{1, 1, 3});
    if (architecture == "llama") writer.f32_tensor("rope_freqs.weight", {8}, {1, 1, 1, 1, 2, 4, 8, 8});
    writer.build().write(folder / (architecture + ".gguf"));
  }
  GgufWriter kinds = model_header("llama");
  kinds.u8("u8", 1).u16("u16", 2).i32("i32", -3).u64("u64", 4).i64("i64", -5).f64("f64", 0.5);
  kinds.numbers("llama.attention.sliding_window_pattern", GgufValueType::boolean, std::vector<std::uint8_t>{1, 0});
  kinds.tensor("other", {256, 2, 2}, kQ4K).tensor("strange", {32}, kIq4Nl);
  kinds.build().write(folder / "kinds.gguf");
  GgufWriter(2).u16("split.no", 0).u16("split.count", 2).build().write(folder / "part.gguf");
}
