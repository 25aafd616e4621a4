#include "engine/model/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "engine/error.h"
#include "engine/model/printable_text.h"

namespace genai {
namespace {

using Entry = GgufMetadata::Entry;

constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxContext = 1 << 30;
constexpr double kMaxRopeFactor = 65536.0;

// What sets one architecture apart from the others where the metadata leaves it open.
struct ArchitectureTraits {
  Architecture architecture;
  std::string_view name;
  bool rope_interleaved;
  bool query_key_norm;
  bool qkv_bias;
};

constexpr ArchitectureTraits kArchitectures[] = {
    {Architecture::llama, "llama", true, false, false},
    {Architecture::qwen2, "qwen2", false, false, true},
    {Architecture::qwen3, "qwen3", false, true, false},
    {Architecture::gemma3, "gemma3", false, true, false},
};

// Keys that change the result, that this build does not act on, and the value at which they change nothing.
struct RefusedNumber {
  std::string_view key;
  float neutral;
};
constexpr RefusedNumber kRefusedNumbers[] = {
    {"logit_scale", 1.0f},
    {"residual_scale", 1.0f},
    {"embedding_scale", 1.0f},
    {"attention.clamp_kqv", 0.0f},
    {"attention.max_alibi_bias", 0.0f},
    {"attention.temperature_scale", 0.0f},
    {"rope.scaling.alpha", 0.0f},
    {"rope.scaling.yarn_log_multiplier", 0.0f},
    {"rope.scaling.yarn_ext_factor", 1.0f},
};

// Reads "<architecture>.<name>" keys with their range. All limits are inclusive.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, std::string prefix) : metadata_(metadata), prefix_(std::move(prefix)) {}

  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  const Entry* find(std::string_view name) const { return metadata_.find(key(name)); }
  const GgufMetadata& metadata() const { return metadata_; }

  std::optional<std::int32_t> find_count(std::string_view name, std::int64_t lowest, std::int64_t highest) const {
    const std::optional<std::int64_t> value = metadata_.find_i64(key(name));
    if (value) check(*find(name), *value, lowest, highest);
    return value ? std::optional<std::int32_t>(static_cast<std::int32_t>(*value)) : std::nullopt;
  }
  std::int32_t require_count(std::string_view name, std::int64_t highest) const {
    metadata_.require_u64(key(name));
    return *find_count(name, 1, highest);
  }
  // One number for all layers, or one a layer if they are all equal.
  std::optional<std::int32_t> find_layer_count(std::string_view name, std::int64_t highest,
                                               std::int32_t layer_count) const {
    const Entry* entry = find(name);
    if (entry == nullptr || entry->type != GgufValueType::array) return find_count(name, 1, highest);
    const std::vector<std::int64_t> values = *metadata_.find_i64_array(key(name));
    if (values.size() != static_cast<std::size_t>(layer_count))
      metadata_.reject(*entry, fmt::format("a list of {} numbers, one a layer", layer_count));
    for (const std::int64_t value : values)
      if (value != values.front())
        metadata_.reject(*entry, "the same in every layer", "models whose layers differ in shape are not supported");
    check(*entry, values.front(), 1, highest);
    return static_cast<std::int32_t>(values.front());
  }
  std::int32_t require_layer_count(std::string_view name, std::int64_t highest, std::int32_t layer_count) const {
    const std::optional<std::int32_t> value = find_layer_count(name, highest, layer_count);
    if (!value) metadata_.require_u64(key(name));
    return *value;
  }
  // Finite and within the range, or rejected.
  std::optional<float> find_number(std::string_view name, double lowest, double highest) const {
    const std::optional<float> value = metadata_.find_f32(key(name));
    if (value && !(*value >= lowest && *value <= highest))
      metadata_.reject(*find(name), fmt::format("from {:g} to {:g}", lowest, highest));
    return value;
  }

 private:
  void check(const Entry& entry, std::int64_t value, std::int64_t lowest, std::int64_t highest) const {
    if (value < lowest || value > highest) metadata_.reject(entry, fmt::format("from {} to {}", lowest, highest));
  }

  const GgufMetadata& metadata_;
  std::string prefix_;
};

const ArchitectureTraits& find_architecture(const GgufMetadata& metadata) {
  const std::string_view name = metadata.require_string("general.architecture");
  std::vector<std::string_view> known;
  for (const ArchitectureTraits& traits : kArchitectures) {
    if (traits.name == name) return traits;
    known.push_back(traits.name);
  }
  metadata.reject(*metadata.find("general.architecture"), fmt::format("one of {}", fmt::join(known, ", ")),
                  "this build does not know the architecture");
}

void refuse_unsupported(const Keys& keys) {
  const GgufMetadata& metadata = keys.metadata();
  if (metadata.find_u64(keys.key("expert_count")).value_or(0) > 0)
    metadata.reject(*keys.find("expert_count"), "0", "mixture of experts is not supported by this build");
  for (const RefusedNumber& refused : kRefusedNumbers) {
    const std::optional<float> value = metadata.find_f32(keys.key(refused.key));
    // Zero stands for "not used" with all of them.
    if (value && *value != refused.neutral && *value != 0.0f)
      metadata.reject(*keys.find(refused.key), fmt::format("{:g}", refused.neutral),
                      "the model needs a feature that this build does not have");
  }
  if (!metadata.find_bool(keys.key("attention.causal")).value_or(true))
    metadata.reject(*keys.find("attention.causal"), "true", "only models that generate text are supported");
  if (metadata.find_bool(keys.key("use_parallel_residual")).value_or(false))
    metadata.reject(*keys.find("use_parallel_residual"), "false", "parallel residual branches are not supported");
}

std::int32_t read_vocabulary_size(const Keys& keys, const GgufFile& file) {
  const GgufMetadata& metadata = keys.metadata();
  std::optional<std::int32_t> size = keys.find_count("vocab_size", 1, kMaxVocabulary);
  const Entry* tokens = metadata.find("tokenizer.ggml.tokens");
  if (!size && tokens != nullptr && tokens->type == GgufValueType::array) {
    if (tokens->element_count < 1) metadata.reject(*tokens, "at least one token");
    size = static_cast<std::int32_t>(tokens->element_count);  // arrays are at most kMaxVocabulary long
  }
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    if (!size) metadata.require_u64(keys.key("vocab_size"));
    return *size;
  }
  const std::uint64_t rows = embedding->shape[1];
  if (size ? rows != static_cast<std::uint64_t>(*size) : rows > kMaxVocabulary)
    throw ModelFileError(embedding->file, embedding->file_offset,
                         size ? fmt::format("{} rows of tensor 'token_embd.weight', one a token", *size)
                              : fmt::format("at most {} rows of tensor 'token_embd.weight'", kMaxVocabulary),
                         fmt::format("{}", rows));
  return static_cast<std::int32_t>(rows);
}

void read_shape(const Keys& keys, const GgufFile& file, ModelConfig& config) {
  const GgufMetadata& metadata = keys.metadata();
  config.layer_count = keys.require_count("block_count", kMaxLayers);
  config.width = keys.require_count("embedding_length", kMaxWidth);
  config.context_tokens = keys.require_count("context_length", kMaxContext);
  config.feed_forward_width = keys.require_layer_count("feed_forward_length", kMaxWidth, config.layer_count);
  config.head_count = keys.require_layer_count("attention.head_count", kMaxWidth / 8, config.layer_count);
  config.kv_head_count =
      keys.find_layer_count("attention.head_count_kv", kMaxWidth / 8, config.layer_count).value_or(config.head_count);
  if (config.head_count % config.kv_head_count != 0)
    metadata.reject(*keys.find("attention.head_count_kv"), fmt::format("a divisor of {} heads", config.head_count));

  const std::optional<std::int32_t> key_length = keys.find_count("attention.key_length", 1, kMaxHeadDim);
  const std::optional<std::int32_t> value_length = keys.find_count("attention.value_length", 1, kMaxHeadDim);
  if (!key_length && config.width % config.head_count != 0)
    metadata.reject(*keys.find("attention.head_count"), fmt::format("a divisor of the width, {}", config.width));
  config.head_dim = key_length.value_or(config.width / config.head_count);
  if (config.head_dim % 8 != 0 || config.head_dim < 8 || config.head_dim > kMaxHeadDim)
    metadata.reject(
        *keys.find(key_length ? "attention.key_length" : "attention.head_count"),
        fmt::format("heads of a multiple of 8 up to {} elements (they have {})", kMaxHeadDim, config.head_dim));
  if (value_length && *value_length != config.head_dim)
    metadata.reject(*keys.find("attention.value_length"), fmt::format("{}, as the keys", config.head_dim),
                    "values and keys of different lengths are not supported");
  if (std::int64_t{config.head_count} * config.head_dim > kMaxWidth)
    metadata.reject(*keys.find("attention.head_count"),
                    fmt::format("at most {} heads of {} elements", kMaxWidth / config.head_dim, config.head_dim));
  config.vocabulary_size = read_vocabulary_size(keys, file);
}

// Divisors of the rotary frequencies, which some models bring as a tensor instead of by keys.
std::vector<float> read_frequency_factors(const GgufFile& file, std::int32_t rotated) {
  const TensorInfo* tensor = file.find_tensor("rope_freqs.weight");
  if (tensor == nullptr) return {};
  const auto pair_count = static_cast<std::uint64_t>(rotated / 2);
  const auto fail = [&](std::string expected, std::string found) {
    throw ModelFileError(tensor->file, tensor->file_offset, std::move(expected), std::move(found));
  };
  if (tensor->dtype != DType::F32 || tensor->shape != std::vector<std::uint64_t>{pair_count})
    fail(fmt::format("{} F32 elements of tensor 'rope_freqs.weight', one a pair", pair_count),
         fmt::format("{} {}", fmt::join(tensor->shape, " x "), tensor->type_name));
  std::vector<float> factors(pair_count);
  std::memcpy(factors.data(), tensor->data, tensor->bytes);
  for (const float factor : factors)
    if (!(factor >= 1.0 / 64 && factor <= kMaxRopeFactor))
      fail(fmt::format("factors from 1/64 to {:g} in tensor 'rope_freqs.weight'", kMaxRopeFactor),
           fmt::format("{}", factor));
  return factors;
}

void read_rope_scaling(const Keys& keys, const ModelConfig& config, RopeSpec& rope) {
  const GgufMetadata& metadata = keys.metadata();
  // "scale_linear" is what older files call the factor. A factor without a type means linear.
  const std::string_view factor_key =
      keys.find("rope.scaling.factor") != nullptr ? "rope.scaling.factor" : "rope.scale_linear";
  const std::string_view type = metadata.find_string(keys.key("rope.scaling.type")).value_or("linear");
  if (type != "none" && type != "linear" && type != "yarn")
    metadata.reject(*keys.find("rope.scaling.type"), "one of none, linear, yarn",
                    "this build does not know the rope scaling, and without it the model would write nonsense");
  rope.attention_factor = keys.find_number("rope.scaling.attn_factor", 1e-3, 1e3).value_or(1.0f);
  if (type == "none") return;

  rope.factor = keys.find_number(factor_key, 1.0 / 64, kMaxRopeFactor).value_or(1.0f);
  if (type == "linear") {
    rope.scaling = rope.factor == 1.0 ? RopeScaling::none : RopeScaling::linear;
    return;
  }
  if (keys.find(factor_key) == nullptr) metadata.require_f32(keys.key("rope.scaling.factor"));
  if (rope.factor < 1.0) metadata.reject(*keys.find(factor_key), "at least 1 for yarn");
  rope.scaling = RopeScaling::yarn;
  rope.original_context_tokens =
      keys.find_count("rope.scaling.original_context_length", 1, kMaxContext).value_or(config.context_tokens);
  rope.beta_fast = keys.find_number("rope.scaling.yarn_beta_fast", 1e-3, 1e6).value_or(32.0f);
  rope.beta_slow = keys.find_number("rope.scaling.yarn_beta_slow", 1e-3, 1e6).value_or(1.0f);
  rope.attention_factor *= keys.find_number("rope.scaling.yarn_attn_factor", 1e-3, 1e3).value_or(1.0f);
}

void read_rope(const Keys& keys, const GgufFile& file, ModelConfig& config) {
  constexpr double kMinBase = 1.5;
  constexpr double kMaxBase = 1e15;
  config.rotated = keys.find_count("rope.dimension_count", 2, config.head_dim).value_or(config.head_dim);
  if (config.rotated % 2 != 0) keys.metadata().reject(*keys.find("rope.dimension_count"), "even");
  config.rope.rotated = config.rotated;
  config.rope.base = keys.find_number("rope.freq_base", kMinBase, kMaxBase).value_or(10000.0f);
  read_rope_scaling(keys, config, config.rope);
  config.rope.frequency_factors = read_frequency_factors(file, config.rotated);

  config.local_rope = config.rope;
  if (config.architecture == Architecture::gemma3) {
    // Local layers of this family were never stretched, and files do not state their base.
    config.local_rope = RopeSpec{};
    config.local_rope.rotated = config.rotated;
  }
  for (const std::string_view name : {"rope.local.freq_base", "rope.freq_base_swa"})
    if (const std::optional<float> base = keys.find_number(name, kMinBase, kMaxBase)) config.local_rope.base = *base;
}

// Which layers have a window. gemma3 has five local layers, then a global one, unless a pattern says otherwise;
// elsewhere a window without a pattern is that of every layer. Files of those architectures seldom have the key, and
// other programs ignore it there; whoever wrote it trained with it, and a key that changes the result is obeyed or
// refused.
void read_window(const Keys& keys, ModelConfig& config) {
  const GgufMetadata& metadata = keys.metadata();
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const auto layer_count = static_cast<std::size_t>(config.layer_count);
  config.local_layers.assign(layer_count, false);
  config.sliding_window = keys.find_count("attention.sliding_window", 0, kMaxContext).value_or(0);
  if (config.sliding_window == 0) return;

  const Entry* pattern = keys.find(kPattern);
  if (pattern != nullptr && pattern->type == GgufValueType::array) {
    config.local_layers = *metadata.find_bool_array(keys.key(kPattern));
    if (config.local_layers.size() != layer_count)
      metadata.reject(*pattern, fmt::format("a list of {} bools, one a layer", layer_count));
  } else {
    // Every `period`-th layer is global; 0: none is.
    const std::int32_t default_period = config.architecture == Architecture::gemma3 ? 6 : 0;
    const std::int32_t period = keys.find_count(kPattern, 0, kMaxLayers).value_or(default_period);
    for (std::int32_t layer = 0; layer < config.layer_count; ++layer)
      config.local_layers[static_cast<std::size_t>(layer)] = period == 0 || layer % period < period - 1;
  }
  // Without a local layer the window means nothing, and later code need not look at both.
  bool any = false;
  for (const bool local : config.local_layers) any = any || local;
  if (!any) config.sliding_window = 0;
}

void read_scales(const Keys& keys, ModelConfig& config) {
  constexpr double kHighestCap = 1e9;
  // The largest gemma3, told by its layers alone, scales queries by the width of a head of equal shares.
  constexpr std::int32_t kGemma27BLayers = 62;
  const bool gemma = config.architecture == Architecture::gemma3;
  const bool shares = gemma && config.layer_count == kGemma27BLayers;
  const std::int32_t scaled_dim = shares ? config.width / config.head_count : config.head_dim;
  const float given_scale = keys.find_number("attention.scale", 0.0, 1e6).value_or(0.0f);
  config.attention_scale =
      given_scale > 0.0f ? given_scale : 1.0f / std::sqrt(static_cast<float>(std::max(scaled_dim, 1)));
  config.embedding_scale = gemma ? std::sqrt(static_cast<float>(config.width)) : 1.0f;
  config.attention_soft_cap = keys.find_number("attn_logit_softcapping", 0.0, kHighestCap).value_or(0.0f);
  config.final_soft_cap = keys.find_number("final_logit_softcapping", 0.0, kHighestCap).value_or(0.0f);
}

}  // namespace

ModelConfig read_model_config(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  const ArchitectureTraits& traits = find_architecture(metadata);
  const Keys keys(metadata, std::string(traits.name));
  refuse_unsupported(keys);

  ModelConfig config;
  config.architecture = traits.architecture;
  config.architecture_name = traits.name;
  config.name = metadata.find_string("general.name").value_or("");
  config.rope_interleaved = traits.rope_interleaved;
  config.query_key_norm = traits.query_key_norm;
  config.qkv_bias = traits.qkv_bias;
  config.post_norms = traits.architecture == Architecture::gemma3;
  config.activation = traits.architecture == Architecture::gemma3 ? Activation::gelu : Activation::silu;

  constexpr std::string_view kEpsilon = "attention.layer_norm_rms_epsilon";
  metadata.require_f32(keys.key(kEpsilon));
  config.norm_epsilon = *keys.find_number(kEpsilon, 1e-12, 0.1);
  read_shape(keys, file, config);
  read_rope(keys, file, config);
  read_window(keys, config);
  read_scales(keys, config);
  return config;
}

}  // namespace genai
