#include "cli/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cctype>

#include "cli/suggestion.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

constexpr std::string_view kPrefix = "GENAI_";
// Variables that mean something to genai, its scripts or its tests without being the twin of a flag.
constexpr std::array<std::string_view, 7> kOtherVariables = {
    "GENAI_ISA", "GENAI_SHARED_DIR", "GENAI_SMOLLM2", "GENAI_GEMMA3", "GENAI_BINARY", "GENAI_CUDA", "GENAI_DEVELOPER"};
constexpr std::string_view kTestPrefix = "GENAI_TEST_";

std::string without_dashes(std::string_view name) {
  return std::string(name.substr(std::min(name.find_first_not_of('-'), name.size())));
}

std::optional<Verb> find_verb(std::string_view name) {
  for (const Verb verb : kVerbs)
    if (verb_name(verb) == name) return verb;
  return std::nullopt;
}

[[noreturn]] void reject_verb(const std::string& word) {
  std::vector<std::string> names;
  for (const Verb verb : kVerbs) names.emplace_back(verb_name(verb));
  const std::optional<std::string> meant = closest_name(word, names);
  throw UsageError(
      fmt::format("'{}' is neither a verb nor a flag", word),
      meant
          ? fmt::format("did you mean {}?", *meant)
          : "verbs are run, verify, plan, bench, perplexity, inspect and tokenize; a model is given with -m, a prompt "
            "with -p \"...\"");
}

[[noreturn]] void reject_flag(Verb verb, const std::string& typed) {
  if (const FlagSpec* elsewhere = find_flag(typed)) {
    std::string verbs;
    for (const Verb other : kVerbs)
      if (elsewhere->is_known_to(other))
        verbs += fmt::format("{}genai {}", verbs.empty() ? "" : ", ", verb_name(other));
    throw UsageError(fmt::format("genai {} does not know {}", verb_name(verb), typed),
                     fmt::format("it belongs to {}", verbs));
  }
  std::vector<std::string> bare;
  const std::vector<std::string> names = flag_names(verb);
  for (const std::string& name : names) bare.push_back(without_dashes(name));
  std::string hint = fmt::format("genai {} --help lists the flags", verb_name(verb));
  if (const std::optional<std::string> meant = closest_name(without_dashes(typed), bare)) {
    const auto index = static_cast<std::size_t>(std::find(bare.begin(), bare.end(), *meant) - bare.begin());
    hint = fmt::format("did you mean {}?", names[index]);
  }
  throw UsageError(fmt::format("unknown flag {}", typed), hint);
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char letter) {
    return std::isdigit(static_cast<unsigned char>(letter)) || letter == '.' || letter == '-';
  });
}

// CLI11 knows one letter behind one dash, and takes "-fa" for "-f a". So every spelling becomes the flag's long one
// here, "--name=value" becomes two words, and a word with one dash is a known spelling, a letter with a number ("-n64")
// or a mistake.
struct SortedWords {
  std::vector<std::string> flags;  // with their values
  std::vector<std::string> loose;  // what belongs to no flag, and all behind "--"
};

SortedWords sort_words(Verb verb, const std::vector<std::string>& words) {
  SortedWords sorted;
  std::vector<std::string>& result = sorted.flags;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      sorted.loose.insert(sorted.loose.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      sorted.loose.push_back(word);
      continue;
    }
    const bool is_long = word.starts_with("--");
    const std::size_t equals = is_long ? word.find('=') : std::string::npos;
    std::string name = word.substr(0, equals);
    std::optional<std::string> attached;
    if (equals != std::string::npos) attached = word.substr(equals + 1);
    const FlagSpec* spec = find_flag(name);
    if (spec == nullptr && !is_long && is_number(std::string_view(word).substr(2))) {
      name = word.substr(0, 2);
      spec = find_flag(name);
      attached = word.substr(2);
      if (spec != nullptr && spec->kind == FlagKind::toggle) spec = nullptr;
    }
    if (spec == nullptr || !spec->is_known_to(verb)) reject_flag(verb, spec == nullptr ? word.substr(0, equals) : name);
    if (spec->kind == FlagKind::toggle) {
      result.push_back(spec->long_name() + (attached ? "=" + *attached : ""));
      continue;
    }
    result.push_back(spec->long_name());
    if (!attached && i + 1 == words.size())
      throw UsageError(fmt::format("{} needs a value", name), fmt::format("write {} {}", name, spec->value_name));
    result.push_back(attached ? *attached : words[++i]);
  }
  return sorted;
}

void parse_flags(RawCommandLine& line, std::vector<std::string> words) {
  CLI::App app;
  app.set_help_flag();
  std::vector<std::pair<const FlagSpec*, CLI::Option*>> options;
  for (const FlagSpec& spec : flag_table()) {
    if (!spec.is_known_to(line.verb)) continue;
    CLI::Option* option = nullptr;
    if (spec.kind == FlagKind::toggle) {
      option = app.add_flag(spec.long_name());
    } else {
      option = app.add_option(spec.long_name(), CLI::callback_t([](const CLI::results_t&) { return true; }));
      option->type_size(1)->expected(1);
    }
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    options.emplace_back(&spec, option);
  }
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what(), fmt::format("genai {} --help lists the flags", verb_name(line.verb)));
  }
  for (const auto& [spec, option] : options) {
    if (option->count() == 0) continue;
    std::vector<std::string> texts = option->results();
    if (spec->kind != FlagKind::repeated) texts = {texts.back()};
    for (std::string& text : texts) line.values[spec->flag].push_back({std::move(text), spec->long_name(), false});
  }
}

void add_environment(RawCommandLine& line, const Environment& environment) {
  std::vector<std::string> known;
  for (const FlagSpec& spec : flag_table()) {
    for (const std::string& name : spec.names) {
      if (!name.starts_with("--") || spec.flag == Flag::help || spec.flag == Flag::version) continue;
      known.push_back(environment_twin(name));
      const auto found = environment.find(known.back());
      if (found == environment.end() || found->second.empty() || !spec.is_known_to(line.verb)) continue;
      const RawValue* present = line.find(spec.flag);
      if (present == nullptr)
        line.values[spec.flag] = {{found->second, found->first, true}};
      else if (present->from_environment && present->text != found->second)
        throw UsageError(fmt::format("{}={} and {}={} contradict each other", present->origin, present->text,
                                     found->first, found->second),
                         "unset one of the two");
    }
  }
  for (const auto& [name, value] : environment) {
    if (name.starts_with(kTestPrefix) || std::find(known.begin(), known.end(), name) != known.end() ||
        std::find(kOtherVariables.begin(), kOtherVariables.end(), name) != kOtherVariables.end())
      continue;
    const std::optional<std::string> meant = closest_name(name, known);
    line.warnings.push_back(fmt::format("the environment variable {} means nothing here{}", name,
                                        meant ? fmt::format(": did you mean {}?", *meant) : ""));
  }
}

}  // namespace

const RawValue* RawCommandLine::find(Flag flag) const {
  const auto found = values.find(flag);
  return found == values.end() ? nullptr : &found->second.back();
}

Environment read_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (text.starts_with(kPrefix) && equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string environment_twin(std::string_view long_name) {
  std::string twin(kPrefix);
  for (const char letter : without_dashes(long_name))
    twin += letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return twin;
}

RawCommandLine read_command_line(const std::vector<std::string>& arguments, const Environment& environment) {
  RawCommandLine line;
  std::vector<std::string> words = arguments;
  if (!words.empty() && !words.front().starts_with('-')) {
    const std::optional<Verb> verb = find_verb(words.front());
    if (!verb) reject_verb(words.front());
    line.verb = *verb;
    words.erase(words.begin());
  }
  SortedWords sorted = sort_words(line.verb, words);
  parse_flags(line, std::move(sorted.flags));
  line.positional = std::move(sorted.loose);
  // `genai inspect FILE` and `genai verify FILE` are natural; any other loose word is a slip, such as a prompt without
  // quotes.
  const std::size_t allowed = line.verb == Verb::inspect || line.verb == Verb::verify ? 1 : 0;
  if (line.positional.size() > allowed)
    throw UsageError(fmt::format("'{}' belongs to no flag", line.positional[allowed]),
                     "a text with spaces needs quotes: -p \"two words\"");
  add_environment(line, environment);
  return line;
}

}  // namespace genai::cli
