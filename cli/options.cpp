#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cli/flag_values.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

constexpr std::int64_t kMostContext = std::int64_t{1} << 27;
constexpr std::int64_t kMostPassRows = 65536;
constexpr std::int64_t kMostThreads = 4096;
constexpr std::int64_t kDefaultPassRows = 512;
constexpr std::int64_t kDefaultBatch = 2048;

std::string require_path(const RawValue& value) {
  if (value.text.empty()) throw UsageError(fmt::format("{}: the path is empty", value.origin), "name a file");
  return value.text;
}

std::string model_path(const RawCommandLine& line) {
  const RawValue* model = line.find(Flag::model);
  if (!line.positional.empty()) {
    if (model != nullptr && !model->from_environment)
      throw UsageError("the model is named twice", "give it once: genai inspect FILE, or with -m");
    return line.positional.front();
  }
  if (model == nullptr)
    throw UsageError("no model is given", fmt::format("name a GGUF file: genai {} -m FILE; genai --help has examples",
                                                      verb_name(line.verb)));
  return require_path(*model);
}

struct PromptValue {
  Flag flag;
  const RawValue* value;
};

// Of several sources, a flag puts variables aside; two flags (or two variables) contradict each other.
PromptValue prompt_value(const RawCommandLine& line) {
  std::vector<PromptValue> given;
  for (const Flag flag : {Flag::prompt, Flag::file, Flag::batch_file})
    if (const RawValue* value = line.find(flag)) given.push_back({flag, value});
  const auto is_variable = [](const PromptValue& each) { return each.value->from_environment; };
  if (!std::all_of(given.begin(), given.end(), is_variable)) std::erase_if(given, is_variable);
  if (given.empty())
    throw UsageError("no prompt is given", "give one with -p \"...\", from a file with -f FILE, from stdin with -p -");
  if (given.size() > 1)
    throw UsageError(fmt::format("{} and {} both give a prompt", given[0].value->origin, given[1].value->origin),
                     "leave one of them out");
  return given.front();
}

PromptOptions prompt_options(const RawCommandLine& line) {
  const auto [flag, value] = prompt_value(line);
  PromptOptions options;
  options.parse_special = choose_switch(line, Flag::parse_special, Flag::no_parse_special, true);
  if (flag != Flag::file && value->text == "-") {
    options.source = PromptOptions::Source::standard_input;
  } else if (flag != Flag::prompt) {
    options.source = PromptOptions::Source::file;
    options.text = require_path(*value);
  } else {
    options.text = is_switched_on(line, Flag::escape) ? replace_escapes(*value) : value->text;
  }
  return options;
}

DeviceRequest device_request(const RawCommandLine& line, const Environment& environment, DeviceRequest request) {
  if (const RawValue* device = line.find(Flag::device)) {
    if (device->text.starts_with("cuda:")) {
      const RawValue ordinal{device->text.substr(5), device->origin + " cuda:", device->from_environment};
      request.cuda_ordinal = static_cast<int>(parse_integer(ordinal, 0, 1023));
      request.backend = Backend::cuda;
    } else {
      constexpr Backend kBackends[] = {Backend::automatic, Backend::host, Backend::cuda};
      request.backend = kBackends[parse_choice(*device, {"auto", "cpu", "cuda"})];
    }
  }
  if (const RawValue* threads = line.find(Flag::threads))
    request.threads = static_cast<int>(parse_integer(*threads, 1, kMostThreads));
  if (const auto found = environment.find("GENAI_ISA"); found != environment.end())
    request.instruction_set = found->second;
  return request;
}

CacheType cache_type(const RawCommandLine& line) {
  const RawValue* keys = line.find(Flag::cache_type_k);
  const RawValue* values = line.find(Flag::cache_type_v);
  constexpr CacheType kTypes[] = {CacheType::f16, CacheType::f32};
  const auto type_of = [&](const RawValue* value) {
    return value == nullptr ? CacheType::f16 : kTypes[parse_choice(*value, {"f16", "f32"})];
  };
  if (type_of(keys) != type_of(values))
    throw UsageError("keys and values must be cached in the same type",
                     "give -ctk and -ctv the same type: f16 or f32 (f16 where one is left out)");
  return type_of(keys);
}

SamplerSettings sampler_settings(const RawCommandLine& line, std::vector<std::string>& warnings) {
  SamplerSettings settings;
  const std::pair<Flag, double*> numbers[] = {
      {Flag::temp, &settings.temperature},
      {Flag::top_p, &settings.top_p},
      {Flag::min_p, &settings.min_p},
      {Flag::typical, &settings.typical_p},
      {Flag::repeat_penalty, &settings.repeat_penalty},
      {Flag::presence_penalty, &settings.presence_penalty},
      {Flag::frequency_penalty, &settings.frequency_penalty},
  };
  for (const auto& [flag, setting] : numbers)
    if (const RawValue* value = line.find(flag)) *setting = parse_number(*value);
  constexpr std::int64_t kMost = 0x7fffffff;
  if (const RawValue* value = line.find(Flag::top_k))
    settings.top_k = static_cast<std::int32_t>(parse_integer(*value, 0, kMost));
  if (const RawValue* value = line.find(Flag::repeat_last_n))
    settings.repeat_last_n = static_cast<std::int32_t>(parse_integer(*value, -1, kMost));
  settings.validate();

  if (settings.temperature == 0.0) {
    std::string idle;
    for (const Flag flag : {Flag::top_k, Flag::top_p, Flag::min_p, Flag::typical})
      if (const RawValue* value = line.find(flag)) idle += (idle.empty() ? "" : ", ") + value->origin;
    if (!idle.empty()) warnings.push_back(fmt::format("{} cannot change a greedy choice: give --temp as well", idle));
  }
  return settings;
}

std::optional<std::uint64_t> seed(const RawCommandLine& line) {
  const RawValue* value = line.find(Flag::seed);
  if (value == nullptr || value->text == "-1") return std::nullopt;
  return parse_unsigned(*value);
}

std::vector<std::string> stops(const RawCommandLine& line) {
  std::vector<std::string> texts;
  const auto found = line.values.find(Flag::stop);
  if (found == line.values.end()) return texts;
  for (const RawValue& value : found->second) {
    texts.push_back(is_switched_on(line, Flag::escape) ? replace_escapes(value) : value.text);
    if (texts.back().empty())
      throw UsageError(fmt::format("{}: an empty text would stop at once", value.origin), "leave it out");
  }
  return texts;
}

std::int32_t pass_rows(const RawCommandLine& line) {
  const RawValue* rows = line.find(Flag::ubatch_size);
  const RawValue* batch = line.find(Flag::batch_size);
  return static_cast<std::int32_t>(
      std::min(rows == nullptr ? kDefaultPassRows : parse_integer(*rows, 1, kMostPassRows),
               batch == nullptr ? kDefaultBatch : parse_integer(*batch, 1, kMostPassRows)));
}

void require_one_budget(const RawCommandLine& line) {
  int given = 0;
  for (const Flag flag : {Flag::gpu_budget, Flag::gpu_layers, Flag::cpu_offload_gb})
    given += line.find(flag) != nullptr;
  if (given > 1)
    throw UsageError("--gpu-budget, --gpu-layers and --cpu-offload-gb all set the budget", "give one of them");
}

// --gpu-layers and --cpu-offload-gb.
void put_budget_sources(const RawCommandLine& line, PlacementOptions& options) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  constexpr double kMostGiB = 1024.0 * 1024.0;
  const RawValue* layers = line.find(Flag::gpu_layers);
  const RawValue* offload = line.find(Flag::cpu_offload_gb);
  require_one_budget(line);
  if (layers != nullptr)
    options.gpu_layers = layers->text == "all" ? std::numeric_limits<std::int32_t>::max()
                                               : static_cast<std::int32_t>(parse_integer(*layers, 0, 1 << 20));
  if (offload == nullptr) return;
  const double gib = parse_number(*offload);
  if (!(gib >= 0.0 && gib <= kMostGiB))
    throw UsageError(fmt::format("{}: {} is no amount of memory", offload->origin, offload->text),
                     "give a number of GiB, such as 4 or 0.5");
  options.cpu_offload_bytes = static_cast<std::uint64_t>(gib * kGiB);
}

// What no flag says stays as it is in `options`.
PlacementOptions placement(const RawCommandLine& line, const Environment& environment, PlacementOptions options = {}) {
  if (const RawValue* value = line.find(Flag::ctx_size))
    options.context = static_cast<std::int32_t>(parse_integer(*value, 0, kMostContext));
  if (line.find(Flag::ubatch_size) != nullptr || line.find(Flag::batch_size) != nullptr)
    options.pass_rows = pass_rows(line);
  options.device = device_request(line, environment, options.device);
  if (const RawValue* value = line.find(Flag::gpu_budget))
    options.budget = parse_memory_limit(value->text, value->origin);
  put_budget_sources(line, options);
  if (const RawValue* value = line.find(Flag::weight_offload)) {
    constexpr OffloadMode kModes[] = {OffloadMode::automatic, OffloadMode::off,  OffloadMode::stream,
                                      OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split};
    options.offload = kModes[parse_choice(*value, {"auto", "off", "stream", "zerocopy", "host", "split"})];
  }
  if (const RawValue* value = line.find(Flag::allocator))
    options.allocator = parse_choice(*value, {"arena", "plain"}) == 0 ? Allocator::arena : Allocator::plain;
  const bool has_budget =
      options.budget.kind != MemoryLimit::Kind::none || options.gpu_layers || options.cpu_offload_bytes;
  if (options.allocator == Allocator::plain && has_budget)
    throw UsageError("--allocator plain takes memory within no budget, and one is given",
                     "leave out --gpu-budget, --gpu-layers and --cpu-offload-gb, also in the environment, or take the "
                     "arena");
  if (const auto found = line.values.find(Flag::cold); found != line.values.end())
    for (const RawValue& value : found->second) options.cold.push_back(value.text);
  if (!options.cold.empty() && options.offload == OffloadMode::off)
    throw UsageError("--cold and --weight-offload off contradict each other", "leave one of the two out");
  if ((options.gpu_layers || options.cpu_offload_bytes) && options.offload == OffloadMode::off)
    throw UsageError("--weight-offload off leaves no weights in host memory", "leave it out, or give a --gpu-budget");
  if (const RawValue* value = line.find(Flag::lane_speeds)) options.lane_speeds = parse_lane_speeds(*value);
  if (line.find(Flag::cache_type_k) != nullptr || line.find(Flag::cache_type_v) != nullptr)
    options.cache_type = cache_type(line);
  if (const RawValue* value = line.find(Flag::parallel))
    options.parallel = static_cast<std::int32_t>(parse_integer(*value, 1, PlacementOptions::kMostParallel));
  return options;
}

ReportForm report_form(const RawCommandLine& line) {
  constexpr ReportForm kForms[] = {ReportForm::json, ReportForm::human, ReportForm::none};
  if (const RawValue* form = line.find(Flag::report)) return kForms[parse_choice(*form, {"json", "human", "none"})];
  return is_switched_on(line, Flag::quiet) ? ReportForm::none : ReportForm::automatic;
}

}  // namespace

LogLevel make_log_level(const RawCommandLine& line) {
  constexpr LogLevel kLevels[] = {LogLevel::none, LogLevel::error, LogLevel::warn, LogLevel::info, LogLevel::debug};
  if (const RawValue* level = line.find(Flag::log_level))
    return kLevels[parse_choice(*level, {"none", "error", "warn", "info", "debug"})];
  return is_switched_on(line, Flag::quiet) ? LogLevel::error : LogLevel::info;
}

RunOptions make_run_options(const RawCommandLine& line, const Environment& environment,
                            std::vector<std::string>& warnings) {
  RunOptions options;
  options.model_path = model_path(line);
  options.prompt = prompt_options(line);
  options.is_batch_file = prompt_value(line).flag == Flag::batch_file;
  options.escapes = is_switched_on(line, Flag::escape);
  options.force_pre_tokenizer = is_switched_on(line, Flag::force);
  if (const RawValue* value = line.find(Flag::predict))
    options.row.max_tokens = static_cast<std::int32_t>(parse_integer(*value, -1, RowSettings::kMostTokens));
  options.row.seed = seed(line);
  options.row.sampler = sampler_settings(line, warnings);
  options.row.stops = stops(line);
  options.ignore_end = is_switched_on(line, Flag::ignore_eos);
  options.placement = placement(line, environment);
  options.graph = choose_switch(line, Flag::cuda_graph, Flag::no_cuda_graph, true);
  options.check = is_switched_on(line, Flag::check);
  options.show_special = is_switched_on(line, Flag::special);
  options.dump_prompt = is_switched_on(line, Flag::dump_prompt);
  options.json = is_switched_on(line, Flag::json);
  options.report = report_form(line);
  if (const RawValue* value = line.find(Flag::report_file)) options.report_file = require_path(*value);
  return options;
}

PlanOptions make_plan_options(const RawCommandLine& line, const Environment& environment) {
  PlanOptions options;
  options.model_path = model_path(line);
  options.json = is_switched_on(line, Flag::json);
  RawCommandLine without_sweep = line;
  const RawValue* budget = line.find(Flag::gpu_budget);
  constexpr std::string_view kTo = "..";
  if (const std::size_t at = budget == nullptr ? std::string::npos : budget->text.find(kTo); at != std::string::npos) {
    options.sweep = {parse_memory_limit(budget->text.substr(0, at), budget->origin),
                     parse_memory_limit(budget->text.substr(at + kTo.size()), budget->origin)};
    const auto is_size = [](const MemoryLimit& limit) { return limit.kind != MemoryLimit::Kind::automatic; };
    if (!is_size(options.sweep->first) || !is_size(options.sweep->last))
      throw UsageError(fmt::format("{}: a sweep goes from one size to another", budget->origin),
                       "give two sizes, such as 10%..100% or 2GiB..12GiB");
    require_one_budget(line);
    without_sweep.values.erase(Flag::gpu_budget);
  }
  options.placement = placement(without_sweep, environment);
  return options;
}

BenchOptions make_bench_options(const RawCommandLine& line, const Environment& environment) {
  if (!is_switched_on(line, Flag::lanes))
    throw UsageError("genai bench measures lanes only: how fast weights are read from each memory",
                     "give --lanes; genai run reports the speed of a model");
  BenchOptions options;
  options.device = device_request(line, environment, {});
  if (const RawValue* value = line.find(Flag::gpu_budget))
    options.budget = parse_memory_limit(value->text, value->origin);
  if (const RawValue* value = line.find(Flag::max_bytes)) {
    const MemoryLimit limit = parse_memory_limit(value->text, value->origin);
    if (limit.kind != MemoryLimit::Kind::bytes || limit.bytes < BenchOptions::kLeastBytes)
      throw UsageError(fmt::format("{}: '{}' is no size of at least 4MiB", value->origin, value->text),
                       "give a size with a unit, such as 1GiB");
    options.max_bytes = limit.bytes;
  }
  options.json = is_switched_on(line, Flag::json);
  return options;
}

ReplayOverrides::ReplayOverrides(const RawCommandLine& line, const Environment& environment)
    : line_(line), environment_(environment) {
  applied_to({});
  graph(true);
}

PlacementOptions ReplayOverrides::applied_to(PlacementOptions options) const {
  const auto is_given = [this](Flag flag) { return line_.find(flag) != nullptr; };
  // Another budget, other names and another device put aside what the report says of them.
  if (is_given(Flag::gpu_budget) || is_given(Flag::gpu_layers) || is_given(Flag::cpu_offload_gb)) {
    options.budget = {};
    options.allocator = Allocator::arena;
  }
  const RawValue* offload = line_.find(Flag::weight_offload);
  if (is_given(Flag::cold) || (offload != nullptr && offload->text == "off")) options.cold.clear();
  if (is_given(Flag::device)) options.device = {};
  const RawValue* allocator = line_.find(Flag::allocator);
  if (allocator != nullptr && allocator->text == "plain") options.budget = {};
  return placement(line_, environment_, std::move(options));
}

bool ReplayOverrides::graph(bool otherwise) const {
  return choose_switch(line_, Flag::cuda_graph, Flag::no_cuda_graph, otherwise);
}

VerifyOptions make_verify_options(const RawCommandLine& line, const Environment& environment) {
  if (line.positional.empty())
    throw UsageError("no report is given", "name a file that genai run --report-file has written: genai verify FILE");
  // A model in the environment is meant for other verbs: the report names its own.
  const RawValue* model = line.find(Flag::model);
  return {.report_path = line.positional.front(),
          .model_path = model == nullptr || model->from_environment ? "" : require_path(*model),
          .overrides = ReplayOverrides(line, environment),
          .json = is_switched_on(line, Flag::json)};
}

PerplexityOptions make_perplexity_options(const RawCommandLine& line, const Environment& environment) {
  PerplexityOptions options;
  options.model_path = model_path(line);
  options.text = prompt_options(line);
  options.force_pre_tokenizer = is_switched_on(line, Flag::force);
  options.placement = placement(line, environment);
  if (options.placement.context) {
    if (*options.placement.context < 2)
      throw UsageError("-c: a window of fewer than 2 tokens predicts nothing", "give -c 2 or more");
    options.window = *options.placement.context;
  }
  options.placement.context = options.window;
  if (const RawValue* value = line.find(Flag::chunks))
    options.max_windows = static_cast<std::int32_t>(parse_integer(*value, -1, kMostContext));
  if (const RawValue* value = line.find(Flag::reference)) options.reference_path = require_path(*value);
  options.json = is_switched_on(line, Flag::json);
  return options;
}

TokenizeOptions make_tokenize_options(const RawCommandLine& line) {
  TokenizeOptions options;
  options.model_path = model_path(line);
  options.prompt = prompt_options(line);
  options.force_pre_tokenizer = is_switched_on(line, Flag::force);
  options.add_special = !is_switched_on(line, Flag::no_bos);
  const bool ids = is_switched_on(line, Flag::ids);
  const bool json = is_switched_on(line, Flag::json);
  if (ids && json) throw UsageError("--ids and --json contradict each other", "leave one of the two out");
  options.form = ids ? TokenizeOptions::Form::ids : json ? TokenizeOptions::Form::json : TokenizeOptions::Form::lines;
  return options;
}

InspectOptions make_inspect_options(const RawCommandLine& line) {
  return {.model_path = model_path(line),
          .json = is_switched_on(line, Flag::json),
          .check = is_switched_on(line, Flag::check)};
}

}  // namespace genai::cli
