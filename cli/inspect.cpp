#include "cli/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/byte_size.h"
#include "cli/content_hash.h"
#include "cli/interrupt.h"
#include "cli/session.h"
#include "cli/weight_check.h"
#include "engine/error.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/model/printable_text.h"
#include "engine/model/weight_map.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

// A file seen as a model: how far that goes, and why no further.
struct ModelView {
  std::optional<ModelConfig> config;
  std::vector<std::string> unread;
  std::exception_ptr failure;
  std::string problem;
};

ModelView view_model(const GgufFile& file) {
  ModelView view;
  try {
    view.config = read_model_config(file);
    view.unread = map_weights(*view.config, file).unread;
    open_tokenizer(file, false);
  } catch (const std::exception& error) {
    view.failure = std::current_exception();
    view.problem = error.what();
  }
  return view;
}

struct TypeTotal {
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;
};

std::map<std::string, TypeTotal> totals_by_type(const GgufFile& file) {
  std::map<std::string, TypeTotal> totals;
  for (const TensorInfo& tensor : file.tensors()) {
    TypeTotal& total = totals[tensor.type_name];
    ++total.tensor_count;
    total.bytes += tensor.bytes;
  }
  return totals;
}

std::uint64_t tensor_bytes(const GgufFile& file) {
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : file.tensors()) bytes += tensor.bytes;
  return bytes;
}

std::string text_form(const GgufFile& file, const ModelView& view) {
  std::string text = fmt::format("file        {}\n", printable_text(file.path(), 4096));
  const std::vector<std::string> parts = file.part_paths();
  if (parts.size() > 1) text += fmt::format("parts       {}\n", parts.size());
  text += fmt::format("format      GGUF version {}, alignment {}\n", file.version(), file.alignment());
  text += fmt::format("size        {} bytes ({})\n", file.file_bytes(), byte_size_text(file.file_bytes()));
  if (view.config) {
    const ModelConfig& config = *view.config;
    text += fmt::format(
        "model       {}, {} layers, width {}, {} heads ({} for keys and values) of {}, {} tokens, context {}\n",
        printable_text(config.architecture_name), config.layer_count, config.width, config.head_count,
        config.kv_head_count, config.head_dim, config.vocabulary_size, config.context_tokens);
  }
  if (!view.problem.empty()) text += fmt::format("problem     {}\n", view.problem);

  text += fmt::format("\nmetadata ({})\n", file.metadata().entries().size());
  for (const GgufMetadata::Entry& entry : file.metadata().entries())
    text += fmt::format("  {:<44} {:<22} {}\n", printable_text(entry.key), GgufMetadata::type_name(entry),
                        GgufMetadata::printable_value(entry));

  text += fmt::format("\ntensors ({})\n", file.tensors().size());
  for (const TensorInfo& tensor : file.tensors())
    text += fmt::format("  {:<36} {:<8} {:<20} {:>12} bytes at {}{}\n", printable_text(tensor.name), tensor.type_name,
                        fmt::format("{}", fmt::join(tensor.shape, " x ")), tensor.bytes, tensor.file_offset,
                        tensor.readable ? "" : "  (type not supported)");

  text += "\ntotals\n";
  for (const auto& [type, total] : totals_by_type(file))
    text += fmt::format("  {:<8} {:>6} tensors {:>16} bytes ({})\n", type, total.tensor_count, total.bytes,
                        byte_size_text(total.bytes));
  const std::uint64_t bytes = tensor_bytes(file);
  text += fmt::format("  {:<8} {:>6} tensors {:>16} bytes ({})\n", "all", file.tensors().size(), bytes,
                      byte_size_text(bytes));
  if (!view.unread.empty()) {
    text += fmt::format("\ntensors that the model does not use ({})\n", view.unread.size());
    for (const std::string& name : view.unread) text += fmt::format("  {}\n", printable_text(name));
  }
  return text;
}

// Scalars as they are, arrays as their type and length: a vocabulary is not what one looks for here.
Json metadata_json(const GgufMetadata& metadata, const GgufMetadata::Entry& entry) {
  const auto number = [](float value) { return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)); };
  switch (entry.type) {
    case GgufValueType::string:
      return std::string(*metadata.find_string(entry.key));
    case GgufValueType::boolean:
      return *metadata.find_bool(entry.key);
    case GgufValueType::f32:
      return number(*metadata.find_f32(entry.key));
    case GgufValueType::f64:
      return GgufMetadata::printable_value(entry);
    case GgufValueType::u64:
      return *metadata.find_u64(entry.key);
    case GgufValueType::array:
      return {{"type", GgufMetadata::type_name(entry)}, {"length", entry.element_count}};
    default:
      return *metadata.find_i64(entry.key);
  }
}

std::string json_form(const GgufFile& file, const ModelView& view) {
  Json json;
  json["path"] = file.path();
  json["parts"] = file.part_paths();
  json["format"] = "GGUF";
  json["version"] = file.version();
  json["alignment"] = file.alignment();
  json["bytes"] = file.file_bytes();
  json["hash"] = hash_text(model_facts(file, "").hash);
  if (!view.problem.empty()) json["problem"] = view.problem;
  json["metadata"] = Json::object();
  for (const GgufMetadata::Entry& entry : file.metadata().entries())
    json["metadata"][std::string(entry.key)] = metadata_json(file.metadata(), entry);
  json["tensors"] = Json::array();
  for (const TensorInfo& tensor : file.tensors())
    json["tensors"].push_back({{"name", tensor.name},
                               {"type", tensor.type_name},
                               {"readable", tensor.readable},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes},
                               {"file", tensor.file},
                               {"offset", tensor.file_offset}});
  json["types"] = Json::object();
  for (const auto& [type, total] : totals_by_type(file))
    json["types"][type] = {{"tensors", total.tensor_count}, {"bytes", total.bytes}};
  json["tensor_bytes"] = tensor_bytes(file);
  json["unread"] = view.unread;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void check(const GgufFile& file, const ModelView& view, Console& console) {
  console.begin_progress("checking");
  const std::vector<NonfiniteWeight> found =
      find_nonfinite_weights(file, [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
        throw_if_interrupted();
        console.show_progress(done_bytes, std::max<std::uint64_t>(total_bytes, 1), "bytes");
      });
  console.end_progress();
  constexpr std::size_t kShown = 20;
  for (std::size_t i = 1; i < std::min(found.size(), kShown); ++i)
    console.warn(fmt::format("tensor '{}': block {} (at byte {}) is not finite", printable_text(found[i].tensor),
                             found[i].block, found[i].file_offset));
  if (!found.empty())
    throw ModelFileError(found.front().file, found.front().file_offset,
                         fmt::format("finite numbers in block {} of tensor '{}'", found.front().block,
                                     printable_text(found.front().tensor)),
                         found.size() == 1 ? "NaN or infinity"
                                           : fmt::format("NaN or infinity, as in {} other tensors", found.size() - 1),
                         "the file is damaged or was converted wrongly; fetch or convert it again");
  if (view.failure) std::rethrow_exception(view.failure);
  console.info("checked: every weight is finite, all shapes fit the model");
}

}  // namespace

int inspect(const InspectOptions& options, Output& output, Console& console) {
  const GgufFile file(options.model_path);
  const ModelView view = view_model(file);
  output.write(options.json ? json_form(file, view) : text_form(file, view));
  if (options.check) check(file, view, console);
  return 0;
}

}  // namespace genai::cli
