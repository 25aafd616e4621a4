// Files that the executable must survive: cut short, corrupt, hostile, full of NaN, not files at all. Every one is a
// message and an exit code, soon and in little memory.
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/scripted_model.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

using namespace genai::test;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSanitizerCost = 10.0;
#else
constexpr double kSanitizerCost = 1.0;
#endif

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_cheap(const ProcessResult& result) {
  CHECK(result.cpu_seconds < 1.0 * kSanitizerCost);
  const std::uint64_t own_cost = 16 << 20;
  const auto allowed = static_cast<std::uint64_t>(kSanitizerCost * 1e8);
  CHECK(result.rss_peak_bytes < std::max(allowed, result.rss_floor_bytes + own_cost));
}

// Refused by every verb that needs what is wrong: exit 3, a message, nothing on stdout.
std::string check_refused(const std::string& path, bool also_inspect = true) {
  const ProcessResult run = run_genai({"-m", path, "-p", "a", "-n", "1"});
  INFO(run.err);
  CHECK(run.exit_code == 3);
  CHECK(run.out.empty());
  CHECK(contains(run.err, path));
  check_cheap(run);
  if (also_inspect) {
    const ProcessResult inspect = run_genai({"inspect", path});
    CHECK(inspect.exit_code == 3);
    CHECK(inspect.out.empty());
    check_cheap(inspect);
  }
  return run.err;
}

GgufWriter good_writer() {
  ScriptedModel model;
  model.add_line({"a", "b", "c"});
  return model.writer();
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_truncations(const std::string& whole, const std::string& last_tensor) {
  const TemporaryFolder folder;
  for (int tenth = 0; tenth < 10; ++tenth) {
    const std::size_t size = whole.size() * static_cast<std::size_t>(tenth) / 10;
    INFO(size << " of " << whole.size() << " bytes");
    check_refused(folder.write("cut.gguf", whole.substr(0, size)));
  }
  const std::string message = check_refused(folder.write("cut.gguf", whole.substr(0, whole.size() - 1)));
  INFO(message);
  CHECK(contains(message, last_tensor));
  CHECK(contains(message, std::to_string(whole.size() - 1)));
}

}  // namespace

TEST_CASE("cli: a model cut short anywhere exits 3 and names the tensor and the sizes") {
  check_truncations(text_of(good_writer().build().bytes), "blk.0.ffn_down.weight");
}

TEST_CASE("cli: a reference model cut short anywhere exits 3") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_K.gguf");
  if (!path) GENAI_SKIP("the reference models are not here");
  check_truncations(read_whole_file(*path), "tensor");
}

TEST_CASE("cli: corrupt headers exit 3 in a moment and in little memory") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::function<void(GgufImage&)>& damage) {
    GgufImage image = good_writer().build();
    damage(image);
    return check_refused(folder.write("bad.gguf", text_of(image.bytes)));
  };
  const auto big = std::uint64_t{1} << 60;
  refused([](GgufImage& image) { image.bytes[0] = std::byte{'X'}; });
  refused([](GgufImage& image) { image.poke("version", std::uint32_t{99}); });
  refused([&](GgufImage& image) { image.poke("tensor_count", big); });
  refused([&](GgufImage& image) { image.poke("pair_count", big); });
  refused([&](GgufImage& image) { image.poke("key:general.architecture", big); });
  refused([&](GgufImage& image) { image.poke("value:general.architecture", big); });
  refused([&](GgufImage& image) { image.poke("value:tokenizer.ggml.tokens", big, 4); });
  refused([](GgufImage& image) { image.poke("type:llama.block_count", std::uint32_t{77}); });
  refused([](GgufImage& image) { image.poke("rank:output.weight", std::uint32_t{9}); });
  refused([](GgufImage& image) { image.poke("rank:output.weight", std::uint32_t{0}); });
  refused([](GgufImage& image) { image.poke("shape:output.weight", (std::uint64_t{1} << 42) + 1); });
  refused([](GgufImage& image) {
    image.poke("shape:output.weight", std::uint64_t{1} << 33).poke("shape:output.weight", std::uint64_t{1} << 33, 8);
  });
  refused([](GgufImage& image) { image.poke("offset:output.weight", std::numeric_limits<std::uint64_t>::max() - 31); });
  refused([](GgufImage& image) { image.poke("offset:output.weight", std::uint64_t{1}); });
  refused([](GgufImage& image) { image.poke("tensor_type:output.weight", std::uint32_t{4000}); });
}

TEST_CASE("cli: alignments of zero, three and the wrong type exit 3") {
  const TemporaryFolder folder;
  for (const std::uint32_t alignment : {0u, 3u})
    check_refused(folder.write("bad.gguf", text_of(good_writer().u32("general.alignment", alignment).build().bytes)));
  check_refused(folder.write("bad.gguf", text_of(good_writer().string("general.alignment", "32").build().bytes)));
}

TEST_CASE("cli: a file of 51 bytes that claims an array of 2^63 elements exits 3") {
  std::vector<std::byte> bytes;
  append_number(bytes, std::uint32_t{0x46554747});
  append_number(bytes, std::uint32_t{3});
  append_number(bytes, std::uint64_t{0});
  append_number(bytes, std::uint64_t{1});
  append_text(bytes, "abc");
  append_number(bytes, std::uint32_t{9});
  append_number(bytes, std::uint32_t{4});
  append_number(bytes, std::uint64_t{1} << 63);
  const TemporaryFolder folder;
  check_refused(folder.write("bomb.gguf", text_of(bytes)));
}

TEST_CASE("cli: a model that contradicts itself exits 3, and inspect shows it with the reason") {
  const TemporaryFolder folder;
  const auto check = [&](const GgufWriter& writer, const std::string& part) {
    const std::string path = folder.write("odd.gguf", text_of(writer.build().bytes));
    CHECK(contains(check_refused(path, false), part));
    const ProcessResult shown = run_genai({"inspect", path});
    INFO(shown.out << shown.err);
    CHECK(shown.exit_code == 0);
    CHECK(contains(shown.out, "problem"));
    CHECK(contains(shown.out, part));
    CHECK(run_genai({"inspect", "--check", path}).exit_code == 3);
  };
  check(good_writer().string("general.architecture", "mamba"), "mamba");
  check(good_writer().string("llama.block_count", "one"), "llama.block_count");
  check(good_writer().u32("llama.block_count", 2), "blk.1.");
  check(good_writer().remove("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
  check(good_writer().u32("tokenizer.ggml.eos_token_id", 60), "eos");
  check(good_writer().string("tokenizer.ggml.pre", "nobody-knows"), "nobody-knows");
}

TEST_CASE("cli: a mixture of experts exits 3 and says what is not supported") {
  const TemporaryFolder folder;
  // As an architecture of its own, and as one that is known but for its experts.
  const std::string own = folder.write("own.gguf", text_of(model_header("qwen3moe")
                                                               .u32("qwen3moe.expert_count", 128)
                                                               .u32("qwen3moe.expert_used_count", 8)
                                                               .build()
                                                               .bytes));
  const std::string message = check_refused(own, false);
  CHECK(contains(message, "found qwen3moe"));
  CHECK(contains(message, "this build does not know the architecture"));
  const std::string known =
      folder.write("known.gguf", text_of(model_header("llama").u32("llama.expert_count", 8).build().bytes));
  CHECK(contains(check_refused(known, false), "mixture of experts is not supported"));
}

TEST_CASE("cli: --force lets an unknown pre-tokenizer pass, with a warning") {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("odd.gguf", text_of(good_writer().string("tokenizer.ggml.pre", "nobody-knows").build().bytes));
  const ProcessResult refused = run_genai({"tokenize", "-m", path, "-p", "a", "--ids"});
  CHECK(refused.exit_code == 3);
  CHECK(contains(refused.err, "nobody-knows"));
  CHECK(contains(refused.err, "--force"));
  const ProcessResult forced = run_genai({"tokenize", "-m", path, "-p", "a", "--ids", "--force"});
  CHECK(forced.exit_code == 0);
  CHECK(forced.out == "[1]\n");
  CHECK(contains(forced.err, "nobody-knows"));
  CHECK(run_genai({"-m", path, "-p", "a", "-n", "2", "--force"}).out == "bc");
}

TEST_CASE("cli: a NaN is found by inspect --check, with tensor and block, and is an error when running") {
  // Rows of Q8_0: two blocks of 34 bytes a row, the scale first.
  constexpr std::uint64_t kRowBytes = 2 * 34;
  GgufWriter writer = good_writer();
  std::vector<std::byte> data(64 * kRowBytes);
  const std::uint16_t nan_scale = 0x7E00;
  std::memcpy(data.data() + 7 * kRowBytes + 34, &nan_scale, sizeof nan_scale);
  writer.tensor("blk.1.ffn_up.weight", {64, 64}, 8, data);  // not part of the model: still looked at
  const TemporaryFolder folder;
  const std::string unused = folder.write("nan.gguf", text_of(writer.build().bytes));
  const ProcessResult found = run_genai({"inspect", unused, "--check"});
  INFO(found.err);
  CHECK(found.exit_code == 3);
  CHECK(contains(found.err, "block 15 of tensor 'blk.1.ffn_up.weight'"));
  CHECK(contains(found.err, "at byte " + std::to_string(writer.build().at("data:blk.1.ffn_up.weight") + 15 * 34)));
  CHECK(run_genai({"inspect", unused}).exit_code == 0);

  GgufImage image = good_writer().build();
  image.poke("data:blk.0.ffn_up.weight", std::numeric_limits<float>::quiet_NaN(), 4 * 64 * 3);
  const std::string used = folder.write("nan.gguf", text_of(image.bytes));
  CHECK(contains(run_genai({"inspect", used, "--check"}).err, "block 192 of tensor 'blk.0.ffn_up.weight'"));
  const ProcessResult run = run_genai({"-m", used, "-p", "a", "-n", "2"});
  INFO(run.err);
  CHECK(run.exit_code == 1);
  CHECK(run.out.empty());
  CHECK(contains(run.err, "not finite"));
  CHECK(contains(run.err, "inspect --check"));
  const ProcessResult checked = run_genai({"-m", used, "-p", "a", "-n", "2", "--check"});
  CHECK(contains(checked.err, "layer 0"));

  const std::string clean = folder.write("clean.gguf", text_of(good_writer().build().bytes));
  const ProcessResult passed = run_genai({"inspect", clean, "--check"});
  CHECK(passed.exit_code == 0);
  CHECK(contains(passed.err, "every weight is finite"));
}

TEST_CASE("cli: a path that is no model file says what it is, and never hangs") {
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(contains(check_refused(folder / "missing.gguf"), "no such file"));
  CHECK(contains(check_refused(folder / "."), "director"));
  CHECK(contains(check_refused(folder.write("empty.gguf", "")), "empty"));
  check_refused(fifo);
  check_refused(folder.write("text.gguf", "This is no model, though it is long enough to have a header.\n"));
}

TEST_CASE("cli: a prompt file that cannot be read says why, and never hangs") {
  const TemporaryFolder folder;
  const std::string model = folder.write("model.gguf", text_of(good_writer().build().bytes));
  const std::string fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const auto refused = [&](const std::string& file) {
    const ProcessResult result = run_genai({"-m", model, "-f", file});
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(contains(result.err, file));
    CHECK(contains(result.err, "hint: "));
    return result.err;
  };
  CHECK(contains(refused(folder / "missing.txt"), "No such file"));
  CHECK(contains(refused(folder / "."), "folder"));
  CHECK(contains(refused(fifo), "pipe"));
  if (::geteuid() != 0) {
    const std::string secret = folder.write("secret.txt", "a");
    ::chmod(secret.c_str(), 0);
    CHECK(contains(refused(secret), "ermission"));
  }
  // A prompt that is there and empty is another matter.
  const ProcessResult empty = run_genai({"-m", model, "-f", folder.write("empty.txt", "")});
  CHECK(empty.exit_code == 2);
  CHECK(contains(empty.err, "no tokens"));
}

TEST_CASE("cli: tensors that the model does not use are named once") {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("extra.gguf", text_of(good_writer().tensor("vision.patch.weight", {64, 4}, 0).build().bytes));
  const ProcessResult run = run_genai({"-m", path, "-p", "a", "-n", "2", "--report", "none"});
  CHECK(run.out == "bc");
  CHECK(contains(run.err, "vision.patch.weight"));
  CHECK(contains(run_genai({"inspect", path}).out, "tensors that the model does not use (1)"));
  const auto json = nlohmann::json::parse(run_genai({"inspect", path, "--json"}).out);
  CHECK(json.at("unread") == nlohmann::json::array({"vision.patch.weight"}));
}

TEST_CASE("cli: inspect shows metadata, tensors and totals, in words and as JSON") {
  const TemporaryFolder folder;
  const std::string path = folder.write("model.gguf", text_of(good_writer().build().bytes));
  const ProcessResult text = run_genai({"inspect", "-m", path});
  CHECK(text.exit_code == 0);
  CHECK(text.err.empty());
  for (const char* part : {"llama.block_count", "blk.0.attn_q.weight", "F32", "64 x 64", "totals", "array of 4 string"})
    CHECK(contains(text.out, part));
  CHECK_FALSE(contains(text.out, "problem"));

  const auto json = nlohmann::json::parse(run_genai({"inspect", path, "--json"}).out);
  CHECK(json.at("bytes") == std::filesystem::file_size(path));
  CHECK(json.at("metadata").at("llama.block_count") == 1);
  CHECK(json.at("metadata").at("tokenizer.ggml.tokens").at("length") == 4);
  CHECK(json.at("tensors").size() == 12);
  CHECK(json.at("tensors")[0].at("shape") == nlohmann::json::array({64, 4}));
  std::uint64_t sum = 0;
  for (const auto& tensor : json.at("tensors")) sum += tensor.at("bytes").get<std::uint64_t>();
  CHECK(json.at("tensor_bytes") == sum);
  CHECK(json.at("types").at("F32").at("tensors") == 12);
  CHECK(json.at("unread").empty());
}

TEST_CASE("cli: tokenize and inspect need no weights") {
  const auto path = shared_data("tokenizer/gpt-2.gguf");
  if (!path) GENAI_SKIP("the tokenizer vocabularies are not here");
  // As the tokenizer of Hugging Face has them; lone bytes it cannot be asked about.
  const std::pair<std::string, std::string> expected[] = {
      {"Hello world! Caf\u00e9 d\u00e9j\u00e0 vu \u2014 123 \U0001F60A",
       "[15496, 995, 0, 42151, 39073, 73, 24247, 410, 84, 851, 17031, 30325, 232]\n"},
      {"line one\r\nline two\r\n\r\n", "[1370, 530, 201, 198, 1370, 734, 201, 198, 201, 198]\n"},
      {"a\u00a0b\u00a0\u00a0c", "[64, 1849, 65, 1849, 1849, 66]\n"},
      {"\U0001F468\u200d\U0001F469\u200d\U0001F467", "[41840, 101, 447, 235, 41840, 102, 447, 235, 41840, 100]\n"},
      {"\x80\xff\xc3", "[222, 187, 127]\n"},
  };
  for (const auto& [text, ids] : expected) {
    const ProcessResult result = run_genai({"tokenize", "-m", path->string(), "-p", text, "--ids"});
    CHECK(result.exit_code == 0);
    CHECK(result.out == ids);
  }
  CHECK(run_genai({"inspect", path->string()}).exit_code == 0);
  CHECK(run_genai({"-m", path->string(), "-p", "a"}).exit_code == 3);
}
