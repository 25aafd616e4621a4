#include "cli/session.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "cli/byte_size.h"
#include "cli/content_hash.h"
#include "cli/gguf_vocabulary.h"
#include "cli/lane_speed_choice.h"
#include "engine/error.h"
#include "engine/residency/budget_translation.h"
#include "tokenizer/pre_tokenizer_rules.h"

namespace genai::cli {
namespace {

constexpr std::int32_t kDefaultContext = 4096;
// What `auto` leaves to others: a sixteenth of the device's memory, at least this.
constexpr std::uint64_t kSmallestReserveBytes = std::uint64_t{256} << 20;
constexpr std::size_t kSampleBytes = 64;

std::string names_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kShown ? text + ", ..." : text;
}

}  // namespace

ModelFacts model_facts(const GgufFile& file, const std::string& arch) {
  ContentHash hash;
  for (const GgufMetadata::Entry& entry : file.metadata().entries()) {
    hash.add(entry.key);
    hash.add(static_cast<std::uint64_t>(entry.type));
    hash.add(static_cast<std::uint64_t>(entry.element_type));
    hash.add(entry.bytes);
  }
  for (const TensorInfo& tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(tensor.type_name);
    for (const std::uint64_t dimension : tensor.shape) hash.add(dimension);
    const std::span<const std::byte> data(tensor.data, tensor.bytes);
    const std::size_t count = std::min<std::size_t>(kSampleBytes, data.size());
    hash.add(data.first(count));
    hash.add(data.subspan((data.size() - count) / 2, count));
    hash.add(data.last(count));
    file.drop_pages(tensor, 0, tensor.bytes);
  }
  hash.add(file.file_bytes());
  return {.path = file.path(), .arch = arch, .bytes = file.file_bytes(), .hash = hash.value()};
}

TokenizerAndWarning open_tokenizer(const GgufFile& file, bool force) {
  Vocabulary vocabulary = read_vocabulary(file);
  TokenizerAndWarning opened;
  if (force && vocabulary.model == "gpt2" && find_pre_tokenizer_rule(vocabulary.pre) == nullptr)
    opened.warning = fmt::format(
        "the pre-tokenizer '{}' is not known: with --force the default one stands in, and token "
        "ids may be wrong",
        vocabulary.pre);
  try {
    opened.tokenizer = make_tokenizer(std::move(vocabulary), {.allow_unknown_pre = force});
  } catch (const TokenizerError& error) {
    throw ModelFileError(file.path(), error.what(), error.hint());
  }
  return opened;
}

std::optional<std::uint64_t> budget_on(const Device& device, const MemoryInfo& info, const MemoryLimit& limit) {
  const auto require_known = [&](const std::optional<std::uint64_t>& bytes) {
    if (bytes) return *bytes;
    throw DeviceError(fmt::format("{} does not say how much memory it has", device.name()),
                      "give --gpu-budget in bytes, such as 6GiB");
  };
  switch (limit.kind) {
    case MemoryLimit::Kind::none:
      return std::nullopt;
    case MemoryLimit::Kind::bytes:
      return limit.bytes;
    case MemoryLimit::Kind::percent:
      return static_cast<std::uint64_t>(static_cast<double>(require_known(info.total_bytes)) * limit.percent / 100.0);
    case MemoryLimit::Kind::automatic: {
      const std::uint64_t reserve = std::max(kSmallestReserveBytes, require_known(info.total_bytes) / 16);
      const std::uint64_t free_bytes = require_known(info.free_bytes);
      return free_bytes > reserve ? free_bytes - reserve : 0;
    }
  }
  return std::nullopt;
}

Session::Session(const SessionOptions& options)
    : options_(options), file_(std::make_unique<GgufFile>(options.model_path)), config_(read_model_config(*file_)) {
  TokenizerAndWarning opened = open_tokenizer(*file_, options.force_pre_tokenizer);
  if (!opened.warning.empty()) warnings_.push_back(opened.warning);
  tokenizer_ = std::move(opened.tokenizer);
  if (tokenizer_->vocabulary_size() > static_cast<std::size_t>(config_.vocabulary_size))
    throw ModelFileError(file_->path(),
                         fmt::format("the vocabulary has {} tokens and the model {} embeddings",
                                     tokenizer_->vocabulary_size(), config_.vocabulary_size),
                         "the file mixes two models; convert it again");
  facts_ = model_facts(*file_, config_.architecture_name);

  const std::int32_t trained = config_.context_tokens;
  context_tokens_ = options.placement.context.value_or(std::min(trained, kDefaultContext));
  if (context_tokens_ == 0) context_tokens_ = trained;
  if (context_tokens_ > trained)
    warnings_.push_back(fmt::format("the context of {} tokens is longer than the {} that the model was trained for",
                                    context_tokens_, trained));
  pass_rows_ = std::min(options.placement.pass_rows, context_tokens_);
  sequence_count_ = options.placement.parallel;
}

std::vector<std::int32_t> Session::encode(std::string_view prompt, bool parse_special) const {
  return tokenizer_->encode(prompt, {.add_special = true, .parse_special = parse_special});
}

void Session::require_fits(std::span<const std::int32_t> prompt) const {
  if (prompt.empty())
    throw UsageError("the prompt has no tokens", "give some text: this model adds no token of its own");
  if (prompt.size() > static_cast<std::size_t>(context_tokens_))
    throw ContextError(fmt::format("prompt {} > ctx {}: the prompt has more tokens than the context has room for",
                                   prompt.size(), context_tokens_),
                       fmt::format("raise the context to -c {} or more (the model was trained for {}), or shorten the "
                                   "prompt; nothing is cut off silently",
                                   prompt.size(), config_.context_tokens));
}

ModelOptions Session::open_device_and_choose() {
  opened_ = options_.open(options_.placement.device);
  if (!opened_.fallback_reason.empty())
    warnings_.push_back(fmt::format("running on the host: {}", opened_.fallback_reason));
  Device& device = *opened_.device;
  budget_bytes_ = budget_on(device, device.memory().info(), options_.placement.budget);
  ModelOptions model_options;
  model_options.context = context_tokens_;
  model_options.max_rows = pass_rows();
  model_options.sequence_count = sequence_count_;
  model_options.cache_type = options_.placement.cache_type;
  model_options.budget_bytes = budget_bytes_;
  model_options.allocator = options_.placement.allocator;
  model_options.offload = options_.placement.offload;
  model_options.has_host_lane = host_lane_device(opened_) != nullptr;
  model_options.host_device = opened_.host_device.get();
  model_options.forced_cold = options_.placement.cold;
  model_options.host_available_bytes = opened_.host_available_bytes;
  model_options.load_threads = opened_.threads;
  model_options.progress = options_.progress;

  PlanRequest request = make_plan_request(map_weights(config_, *file_), config_, *opened_.device, model_options);
  const std::optional<std::uint64_t> cold_bytes = asked_cold_bytes(request);
  if (!cold_bytes) make_residency_plan(request);  // what does not fit is refused before anything is measured
  request.speeds = choose_lane_speeds(options_.placement.lane_speeds, opened_, budget_bytes_, warnings_);
  model_options.lane_speeds = request.speeds;
  if (cold_bytes) choose_budget(request, *cold_bytes, model_options);
  return model_options;
}

std::optional<std::uint64_t> Session::asked_cold_bytes(const PlanRequest& request) const {
  if (options_.placement.gpu_layers) return bytes_off_gpu(request, config_.layer_count, *options_.placement.gpu_layers);
  return options_.placement.cpu_offload_bytes;
}

void Session::choose_budget(const PlanRequest& request, std::uint64_t cold_bytes, ModelOptions& model_options) {
  budget_bytes_ = budget_for_cold_bytes(request, cold_bytes);
  model_options.budget_bytes = budget_bytes_;
  warnings_.push_back(fmt::format("{} is --gpu-budget {} here: {} of weights may stay in host memory",
                                  options_.placement.gpu_layers ? "--gpu-layers" : "--cpu-offload-gb", *budget_bytes_,
                                  byte_size_text(cold_bytes)));
}

ResidencyPlan Session::plan_only(PlanRequest& request) {
  const ModelOptions model_options = open_device_and_choose();
  request = make_plan_request(map_weights(config_, *file_), config_, *opened_.device, model_options);
  return make_residency_plan(request);
}

void Session::limit_sequences(std::size_t text_count) {
  sequence_count_ = static_cast<std::int32_t>(std::min(static_cast<std::size_t>(sequence_count_), text_count));
}

void Session::load() {
  file_->drop_all_pages();
#ifdef __GLIBC__
  ::malloc_trim(0);  // a vocabulary is prepared in several times its size, which would stay with the process
#endif
  const auto start = std::chrono::steady_clock::now();
  const ModelOptions model_options = open_device_and_choose();
  model_.emplace(*file_, config_, *opened_.device, model_options);
  file_.reset();
  const std::vector<std::string>& unread = model_->weight_map().unread;
  if (!unread.empty())
    warnings_.push_back(
        fmt::format("{} tensors of the file are not used by the model: {}", unread.size(), names_of(unread)));
  if (!model_->pinning_refusal().empty())
    warnings_.push_back(model_->pinning_refusal() +
                        "; pageable memory is used instead: copies from it are slower, and of single calls");
  loop_.emplace(*model_, DecodeLoop::Options{.graph = options_.graph, .check = options_.check});
  load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace genai::cli
