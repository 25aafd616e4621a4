#include "cli/batch_file.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/flag_values.h"
#include "cli/suggestion.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr std::int64_t kMostInteger = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void reject(const std::string& origin, const std::string& problem, const std::string& hint) {
  throw UsageError(fmt::format("{}: {}", origin, problem), hint);
}

// One value of an object: where it stands, for messages.
struct Value {
  const Json& json;
  const std::string& key;
  const std::string& origin;

  [[noreturn]] void reject_kind(const std::string& expected) const {
    reject(origin, fmt::format("{}: expected {}, found {}", key, expected, json.dump(-1, ' ', false, kReplace)),
           "see the keys of a batch file in cli/README.md");
  }
  std::int32_t integer(std::int64_t lowest, std::int64_t highest) const {
    const bool fits = json.is_number_integer() && (!json.is_number_unsigned() || json.get<std::uint64_t>() <= kMost);
    const std::int64_t number = fits ? json.get<std::int64_t>() : 0;
    if (!fits || number < lowest || number > highest)
      reject_kind(fmt::format("a whole number from {} to {}", lowest, highest));
    return static_cast<std::int32_t>(number);
  }
  double number() const {
    if (!json.is_number()) reject_kind("a number");
    return json.get<double>();
  }
  std::string text() const {
    if (!json.is_string()) reject_kind("a text");
    return json.get<std::string>();
  }
  std::optional<std::uint64_t> seed() const {
    if (json.is_number_unsigned()) return json.get<std::uint64_t>();
    if (json == -1) return std::nullopt;
    reject_kind("-1 or a whole number from 0 on");
  }
  std::vector<std::string> stops() const {
    std::vector<std::string> texts;
    for (const Json& each : json.is_array() ? json : Json::array({json}))
      texts.push_back(Value{each, key, origin}.text());
    for (const std::string& text : texts)
      if (text.empty()) reject_kind("texts that are not empty");
    return texts;
  }

  static constexpr auto kReplace = Json::error_handler_t::replace;
  static constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
};

struct Key {
  std::vector<std::string> names;  // the first one is what the report calls it
  std::function<void(const Value&, PromptRow&)> set;
};

const std::vector<Key>& known_keys() {
  const auto number = [](double SamplerSettings::*setting) {
    return [setting](const Value& value, PromptRow& row) { row.settings.sampler.*setting = value.number(); };
  };
  static const std::vector<Key> keys = {
      {{"prompt"}, [](const Value& value, PromptRow& row) { row.prompt = value.text(); }},
      {{"max_tokens", "n", "n_predict"},
       [](const Value& value, PromptRow& row) {
         row.settings.max_tokens = value.integer(-1, RowSettings::kMostTokens);
       }},
      {{"seed"}, [](const Value& value, PromptRow& row) { row.settings.seed = value.seed(); }},
      {{"stop"}, [](const Value& value, PromptRow& row) { row.settings.stops = value.stops(); }},
      {{"temperature", "temp"}, number(&SamplerSettings::temperature)},
      {{"top_k"},
       [](const Value& value, PromptRow& row) { row.settings.sampler.top_k = value.integer(0, kMostInteger); }},
      {{"top_p"}, number(&SamplerSettings::top_p)},
      {{"min_p"}, number(&SamplerSettings::min_p)},
      {{"typical_p", "typical"}, number(&SamplerSettings::typical_p)},
      {{"repeat_penalty"}, number(&SamplerSettings::repeat_penalty)},
      {{"repeat_last_n"},
       [](const Value& value, PromptRow& row) {
         row.settings.sampler.repeat_last_n = value.integer(-1, kMostInteger);
       }},
      {{"presence_penalty"}, number(&SamplerSettings::presence_penalty)},
      {{"frequency_penalty"}, number(&SamplerSettings::frequency_penalty)}};
  return keys;
}

const Key& require_key(const std::string& name, const std::string& origin) {
  std::vector<std::string> names;
  for (const Key& key : known_keys()) {
    if (std::find(key.names.begin(), key.names.end(), name) != key.names.end()) return key;
    names.insert(names.end(), key.names.begin(), key.names.end());
  }
  const std::optional<std::string> meant = closest_name(name, names);
  reject(origin, fmt::format("unknown key '{}'", name),
         meant ? fmt::format("did you mean {}?", *meant) : fmt::format("known are {}", fmt::join(names, ", ")));
}

// The object of a line. A key that stands there twice is an error: the parser alone would take the last one.
Json parse_object(std::string_view line, const std::string& origin) {
  std::set<std::string> seen;
  const auto on_event = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(parsed.get<std::string>()).second)
      reject(origin, fmt::format("the key '{}' stands there twice", parsed.get<std::string>()),
             "leave one of them out");
    return true;
  };
  constexpr const char* kHint =
      "one object a line, such as {\"prompt\": \"Once\", \"max_tokens\": 64}; a plain text must not begin with {";
  try {
    Json object = Json::parse(line, on_event);
    if (!object.is_object()) reject(origin, "not a JSON object", kHint);
    return object;
  } catch (const Json::parse_error& error) {
    reject(origin, fmt::format("not JSON, at byte {} of the line", error.byte), kHint);
  }
}

// True where the settings of this line hold a filter that cannot change a greedy choice.
bool parse_row(std::string_view line, PromptRow& row) {
  const Json object = parse_object(line, row.origin);
  std::set<const Key*> given;
  bool has_filter = false;
  for (const auto& [name, json] : object.items()) {
    const Key& key = require_key(name, row.origin);
    if (!given.insert(&key).second)
      reject(row.origin, fmt::format("{} is given twice", fmt::join(key.names, " or ")), "leave one of them out");
    key.set(Value{json, name, row.origin}, row);
    for (const char* filter : {"top_k", "top_p", "min_p", "typical_p"}) has_filter |= key.names.front() == filter;
  }
  if (!object.contains("prompt")) reject(row.origin, "there is no \"prompt\"", "give each line one");
  try {
    row.settings.sampler.validate();
  } catch (const UsageError& error) {
    reject(row.origin, error.what(), error.hint());
  }
  return has_filter && row.settings.sampler.temperature == 0.0;
}

}  // namespace

std::vector<PromptRow> read_batch_file(const BatchFile& file, const RowSettings& defaults,
                                       std::vector<std::string>& warnings) {
  const std::size_t first = file.text.find_first_not_of(kWhiteSpace);
  const bool is_jsonl = first != std::string_view::npos && file.text[first] == '{';
  std::vector<PromptRow> rows;
  std::vector<std::string> idle_filters;  // origins
  std::size_t line_number = 0;
  for (std::string_view rest = file.text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    PromptRow row{.prompt = {}, .settings = defaults, .origin = fmt::format("{}:{}", file.name, ++line_number)};
    if (!is_jsonl) {
      row.prompt = file.replace_escapes ? replace_escapes({std::string(line), row.origin, false}) : std::string(line);
    } else if (line.find_first_not_of(kWhiteSpace) == std::string_view::npos) {
      continue;
    } else if (parse_row(line, row)) {
      idle_filters.push_back(row.origin);
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty())
    throw UsageError(fmt::format("{}: there is no prompt in it", file.name), "write one prompt a line, or JSONL");
  if (!idle_filters.empty())
    warnings.push_back(fmt::format(
        "{}: filters cannot change a greedy choice: give a temperature as well{}", idle_filters.front(),
        idle_filters.size() == 1 ? "" : fmt::format(" (and {} more lines like it)", idle_filters.size() - 1)));
  return rows;
}

}  // namespace genai::cli
