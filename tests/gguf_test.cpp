#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/model/gguf_file.h"
#include "tests/catch.h"
#include "tests/gguf_failure.h"
#include "tests/gguf_writer.h"
#include "tests/shared_data.h"

using namespace genai;
using namespace genai::test;

TEST_CASE("gguf tensors have the shape, type and bytes of the file", "[gguf]") {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufWriter writer(version);
    writer.f32_tensor("first", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}).tensor("second", {64, 3}, kQ8);
    const GgufImage image = writer.build();
    const GgufFile file(image.bytes, "test.gguf");
    CHECK(file.version() == version);
    CHECK(file.alignment() == 32);
    REQUIRE(file.tensors().size() == 2);
    const TensorInfo& first = file.require_tensor("first");
    CHECK(&first == &file.tensors()[0]);
    CHECK(first.dtype == DType::F32);
    CHECK(first.shape == std::vector<std::uint64_t>{4, 2});
    CHECK(first.bytes == 32);
    CHECK(first.file == "test.gguf");
    CHECK(first.file_offset == image.at("data:first"));
    CHECK(first.data == image.bytes.data() + image.at("data:first"));
    float last;
    std::memcpy(&last, first.data + 28, sizeof last);
    CHECK(last == 8.0f);
    const TensorInfo& second = file.require_tensor("second");
    CHECK(second.dtype == DType::Q8_0);
    CHECK(second.bytes == 3 * 2 * 34);
    CHECK(second.type_name == "Q8_0");
  }
}

TEST_CASE("gguf absent tensor is null or an error that names it", "[gguf]") {
  const GgufImage image = two_tensors().build();
  const GgufFile file(image.bytes, "test.gguf");
  CHECK(file.find_tensor("third") == nullptr);
  CHECK(failure_of([&] { file.require_tensor("third"); }).says("'third'"));
}

TEST_CASE("gguf alignment of the file places the data", "[gguf]") {
  for (const std::uint32_t alignment : {8u, 64u, 4096u}) {
    const GgufImage image = two_tensors().u32("general.alignment", alignment).build(alignment);
    const GgufFile file(image.bytes, "test.gguf");
    CHECK(file.alignment() == alignment);
    CHECK(file.require_tensor("second").file_offset == image.at("data:second"));
    CHECK(file.require_tensor("second").file_offset % alignment == 0);
  }
}

TEST_CASE("gguf integers of every width are read where they fit", "[gguf]") {
  GgufWriter writer;
  writer.u8("u8", 200)
      .u16("u16", 60000)
      .u32("u32", 4000000000u)
      .i32("i32", 7)
      .i32("negative", -7)
      .u64("u64", 1ull << 40);
  writer.u64("huge", std::numeric_limits<std::uint64_t>::max()).i64("i64", -(1ll << 40)).f32("f32", 1.5f);
  writer.f64("f64", 0.25).f64("wide", 1e300).boolean("yes", true).string("text", "hello");
  const GgufImage image = writer.build();
  const GgufFile file(image.bytes, "test.gguf");
  const GgufMetadata& metadata = file.metadata();
  CHECK(metadata.find_u32("u8") == 200u);
  CHECK(metadata.find_u64("u16") == 60000u);
  CHECK(metadata.find_u32("u32") == 4000000000u);
  CHECK(metadata.find_u32("i32") == 7u);
  CHECK(metadata.find_u64("u64") == 1ull << 40);
  CHECK(metadata.find_i64("negative") == -7);
  CHECK(metadata.find_i64("i64") == -(1ll << 40));
  CHECK(metadata.find_u64("huge") == std::numeric_limits<std::uint64_t>::max());
  CHECK(metadata.find_f32("f32") == 1.5f);
  CHECK(metadata.find_f32("f64") == 0.25f);
  CHECK(metadata.find_bool("yes") == true);
  CHECK(metadata.find_string("text") == "hello");
  CHECK(metadata.find_u32("absent") == std::nullopt);

  const auto check = [&](const std::string& key, const std::string& expected, const std::string& found, auto read) {
    const std::uint64_t offset = image.at("value:" + key) + (key == "text" ? 8 : 0);
    check_failure(failure_of(read), offset, "'" + key + "' to be " + expected, found);
  };
  check("negative", "an integer of at least 0", "-7", [&] { metadata.find_u32("negative"); });
  check("u64", "an integer below 2^32", "1099511627776", [&] { metadata.find_u32("u64"); });
  check("huge", "an integer below 2^63", "18446744073709551615", [&] { metadata.find_i64("huge"); });
  check("wide", "a number in the range of f32", "1e+300", [&] { metadata.find_f32("wide"); });
  check("f32", "an integer", "f32: 1.5", [&] { metadata.find_u32("f32"); });
  check("u8", "a floating-point number", "u8: 200", [&] { metadata.find_f32("u8"); });
  check("u8", "a bool", "u8: 200", [&] { metadata.find_bool("u8"); });
  check("yes", "a string", "bool: true", [&] { metadata.find_string("yes"); });
  check("text", "an array of strings", "string: hello", [&] { metadata.find_string_array("text"); });
  CHECK(failure_of([&] { metadata.require_u32("absent"); }).says("no 'absent'"));
  CHECK(failure_of([&] { metadata.require_string_array("absent"); }).says("no 'absent'"));
}

TEST_CASE("gguf arrays come back whole and of their own type only", "[gguf]") {
  GgufWriter writer;
  writer.strings("words", {"a", "", "long one"}).numbers("scores", GgufValueType::f32, std::vector<float>{1.5f, -2.0f});
  writer.numbers("types", GgufValueType::i32, std::vector<std::int32_t>{1, -3});
  writer.numbers("wide", GgufValueType::u64, std::vector<std::uint64_t>{5, ~0ull});
  writer.numbers("flags", GgufValueType::boolean, std::vector<std::uint8_t>{1, 0, 1});
  writer.numbers("odd", GgufValueType::boolean, std::vector<std::uint8_t>{1, 2});
  writer.strings("none", {});
  const GgufImage image = writer.build();
  const GgufFile file(image.bytes, "test.gguf");
  const GgufMetadata& metadata = file.metadata();
  CHECK(metadata.find_string_array("words") == std::vector<std::string_view>{"a", "", "long one"});
  CHECK(metadata.find_string_array("none") == std::vector<std::string_view>{});
  CHECK(metadata.find_f32_array("scores") == std::vector<float>{1.5f, -2.0f});
  CHECK(metadata.find_i64_array("types") == std::vector<std::int64_t>{1, -3});
  CHECK(metadata.find_bool_array("flags") == std::vector<bool>{true, false, true});
  CHECK(metadata.find_string_array("absent") == std::nullopt);
  CHECK(failure_of([&] {
          metadata.find_f32_array("words");
        }).says("'words' to be an array of f32, found array of 3 str"));
  CHECK(failure_of([&] { metadata.find_i64_array("scores"); }).says("an array of integers"));
  CHECK(failure_of([&] { metadata.find_i64_array("wide"); }).says("integers below 2^63"));
  CHECK(failure_of([&] { metadata.find_bool_array("odd"); }).says("bools that are 0 or 1"));
  CHECK(failure_of([&] { metadata.find_bool_array("types"); }).says("an array of bool"));
}

TEST_CASE("gguf metadata print on one line without control characters", "[gguf]") {
  GgufWriter writer;
  writer.string("name", "a\x1b[31m\nb\xc2\x9b \xc3\xa9\xff").u32("count", 7).f32("nan", NAN);
  writer.string("long", std::string(500, 'x')).strings("words", {"one", "two"});
  writer.numbers("many", GgufValueType::i32, std::vector<std::int32_t>(1000, 5));
  const GgufImage image = writer.build();
  const GgufFile file(image.bytes, "test.gguf");
  const std::vector<GgufMetadata::Entry>& entries = file.metadata().entries();
  REQUIRE(entries.size() == 6);
  CHECK(entries[0].key == "name");
  CHECK(GgufMetadata::type_name(entries[0]) == "string");
  CHECK(GgufMetadata::printable_value(entries[0]) == "a\\x1b[31m\\nb\\xc2\\x9b \xc3\xa9\\xff");
  CHECK(GgufMetadata::printable_value(entries[1]) == "7");
  CHECK(GgufMetadata::printable_value(entries[2]) == "nan");
  CHECK(GgufMetadata::printable_value(entries[3]) == std::string(60, 'x') + "...");
  CHECK(GgufMetadata::printable_value(entries[4]) == "[\"one\", \"two\"]");
  CHECK(GgufMetadata::type_name(entries[5]) == "array of 1000 i32");
  CHECK(GgufMetadata::printable_value(entries[5]).size() < 80);
}

TEST_CASE("gguf tensors of a type without decoder are errors only for who asks for them", "[gguf]") {
  GgufWriter writer = two_tensors();
  writer.tensor("strange", {32, 2}, kIq4Nl);
  const GgufImage image = writer.build();
  const GgufFile file(image.bytes, "test.gguf");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[2].type_name == "IQ4_NL");
  CHECK(file.tensors()[2].bytes == 36);
  CHECK_FALSE(file.tensors()[2].readable);
  CHECK_NOTHROW(file.require_tensor("first"));
  const Failure failure = failure_of([&] { file.find_tensor("strange"); });
  check_failure(failure, image.at("data:strange"), "tensor 'strange' in a type that this build reads (F32,",
                "type 20 (IQ4_NL)");
  CHECK(failure.says("Q4_K"));
}

TEST_CASE("gguf paths that are no file are refused at once", "[gguf]") {
  const TemporaryFolder folder;
  const auto failure = [](const std::filesystem::path& path) { return failure_of([&] { GgufFile file(path); }); };
  CHECK(failure(folder / "absent.gguf").says("no such file"));
  CHECK(failure(folder.path()).says("is a directory"));
  CHECK(failure("/dev/null").says("is a device"));
  { std::ofstream empty(folder / "empty.gguf"); }
  CHECK(failure(folder / "empty.gguf").says("is empty"));
  REQUIRE(::mkfifo((folder / "fifo.gguf").c_str(), 0600) == 0);
  CHECK(failure(folder / "fifo.gguf").says("is a FIFO"));
  CHECK(failure(folder / "empty.gguf/below").says("cannot be opened"));
  CHECK(failure(folder / std::string(5000, 'x')).says("cannot be opened"));
}

TEST_CASE("gguf file without permission to read is refused", "[gguf]") {
  if (::geteuid() == 0) GENAI_SKIP("root may read everything");
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "secret.gguf";
  two_tensors().build().write(path);
  std::filesystem::permissions(path, std::filesystem::perms::none);
  CHECK(failure_of([&] { GgufFile file(path); }).says("may not be read"));
}

TEST_CASE("gguf pages dropped by a loader read the same again", "[gguf]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.gguf";
  std::vector<float> values(40000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  GgufWriter writer;
  writer.f32_tensor("before", {1}, {-1.0f}).f32_tensor("large", {40000}, values).f32_tensor("after", {1}, {-2.0f});
  writer.build().write(path);
  const GgufFile file(path);
  CHECK(file.file_bytes() == std::filesystem::file_size(path));
  CHECK(file.part_paths() == std::vector<std::string>{path.string()});
  const TensorInfo& large = file.require_tensor("large");
  file.populate_pages(large, 0, large.bytes);
  file.populate_pages(large, large.bytes, 0);
  CHECK_THROWS_AS(file.populate_pages(large, 1, large.bytes), Error);
  file.drop_pages(large, 0, large.bytes);
  file.drop_pages(large, 5000, 1);
  file.drop_pages(large, large.bytes, 0);
  CHECK(std::memcmp(large.data, values.data(), large.bytes) == 0);
  CHECK_THROWS_AS(file.drop_pages(large, 1, large.bytes), Error);
}

namespace {

// Parts of one model; `change` may spoil a part before it is written.
void write_set(const TemporaryFolder& folder, int count, const std::function<void(int, GgufWriter&)>& change = {}) {
  for (int part = 0; part < count; ++part) {
    GgufWriter writer;
    if (part == 0) writer.string("general.architecture", "llama").i32("split.tensors.count", count);
    writer.u16("split.no", static_cast<std::uint16_t>(part)).u16("split.count", static_cast<std::uint16_t>(count));
    writer.f32_tensor("tensor." + std::to_string(part), {2}, {1.0f, static_cast<float>(part)});
    if (change) change(part, writer);
    writer.build().write(folder / ("m-0000" + std::to_string(part + 1) + "-of-0000" + std::to_string(count) + ".gguf"));
  }
}

}  // namespace

TEST_CASE("gguf split set opens from its first part with the tensors of all", "[gguf]") {
  const TemporaryFolder folder;
  write_set(folder, 3);
  const GgufFile file(folder / "m-00001-of-00003.gguf");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.part_paths().size() == 3);
  const TensorInfo& last = file.require_tensor("tensor.2");
  CHECK(last.file == folder / "m-00003-of-00003.gguf");
  float value;
  std::memcpy(&value, last.data + 4, sizeof value);
  CHECK(value == 2.0f);
  file.drop_pages(last, 0, last.bytes);
  std::memcpy(&value, last.data + 4, sizeof value);
  CHECK(value == 2.0f);
  CHECK(file.metadata().require_string("general.architecture") == "llama");
}

TEST_CASE("gguf split set is refused where its parts do not belong together", "[gguf]") {
  const auto failure = [](const std::function<void(int, GgufWriter&)>& change) {
    const TemporaryFolder folder;
    write_set(folder, 2, change);
    return failure_of([&] { GgufFile file(folder / "m-00001-of-00002.gguf"); });
  };
  const Failure number = failure([](int part, GgufWriter& writer) {
    if (part == 1) writer.u16("split.no", 0);
  });
  CHECK(number.says("'split.no' to be 1, as the file's name says, found 0"));
  CHECK(number.says("m-00002-of-00002.gguf: at byte"));
  const Failure count = failure([](int part, GgufWriter& writer) {
    if (part == 1) writer.u16("split.count", 3);
  });
  CHECK(count.says("'split.count' to be 2, as in the first part, found 3"));
  const Failure tensors = failure([](int part, GgufWriter& writer) {
    if (part == 0) writer.i32("split.tensors.count", 5);
  });
  CHECK(tensors.says("'split.tensors.count' to be 2, the tensors of all parts, found 5"));
  const Failure names = failure([](int part, GgufWriter& writer) {
    if (part == 0) writer.i32("split.tensors.count", 3);
    if (part == 1) writer.f32_tensor("tensor.0", {1}, {1});
  });
  CHECK(names.says("expected every tensor name once, found 'tensor.0' a second time"));
  const Failure missing = failure([](int part, GgufWriter& writer) {
    if (part == 1) writer.remove("split.no");
  });
  CHECK(missing.says("no 'split.no'"));
  const Failure type = failure([](int part, GgufWriter& writer) {
    if (part == 0) writer.f32("split.count", 2.0f);
  });
  CHECK(type.says("'split.count' to be an integer"));
  const Failure many = failure([](int part, GgufWriter& writer) {
    if (part == 0) writer.u64("split.count", 1ull << 60);
  });
  CHECK(many.says("at most 4096 parts"));
}

TEST_CASE("gguf split set says which part is missing, and which to open", "[gguf]") {
  const TemporaryFolder folder;
  write_set(folder, 3);
  const Failure second = failure_of([&] { GgufFile file(folder / "m-00002-of-00003.gguf"); });
  CHECK(second.says("'split.no' to be 0, the first part of the set, found 1"));
  CHECK(second.hint.find("m-00001-of-00003.gguf") != std::string::npos);
  std::filesystem::copy(folder / "m-00001-of-00003.gguf", folder / "renamed.gguf");
  CHECK(failure_of([&] { GgufFile file(folder / "renamed.gguf"); }).says("does not end in '-00001-of-00003.gguf'"));
  std::filesystem::remove(folder / "m-00003-of-00003.gguf");
  CHECK(
      failure_of([&] { GgufFile file(folder / "m-00001-of-00003.gguf"); }).says("m-00003-of-00003.gguf: no such file"));
  const std::vector<std::byte> bytes = contents(folder / "m-00001-of-00003.gguf");
  CHECK(failure_of(bytes).says("'split.count' to be 1 for a model that is read from memory"));
}
