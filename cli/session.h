// session.h - one model, opened: file, tokenizer, device, weights and decode loop meet here and nowhere else. Opening
// reads headers only, so that prompts can be encoded and refused before anything large happens; load() does the rest.
// One thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "engine/decode/decode_loop.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/open_device.h"
#include "tokenizer/tokenizer.h"

namespace genai::cli {

struct SessionOptions {
  std::string model_path;
  bool force_pre_tokenizer = false;

  PlacementOptions placement;
  bool graph = true;
  bool check = false;
  std::function<OpenedDevice(const DeviceRequest&)> open = open_device;
  // Called while weights are placed; may throw to give up.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;
};

// What can be said about a model file in a report.
struct ModelFacts {
  std::string path;
  std::string arch;
  std::uint64_t bytes = 0;  // of all parts
  std::uint64_t hash = 0;   // of metadata, tensor table, size and a few bytes of each tensor
};

struct TokenizerAndWarning {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string warning;  // empty: none
};
// `force` lets an unknown pre-tokenizer pass, with a warning. Throws ModelFileError.
TokenizerAndWarning open_tokenizer(const GgufFile& file, bool force);

class Session {
 public:
  // Throws ModelFileError.
  explicit Session(const SessionOptions& options);

  // With the tokens that the model adds at the ends.
  std::vector<std::int32_t> encode(std::string_view prompt, bool parse_special) const;
  // Throws ContextError, or UsageError where there is no token at all.
  void require_fits(std::span<const std::int32_t> prompt) const;

  // Fewer texts than --parallel asked for: no more sequences than that. Before load().
  void limit_sequences(std::size_t text_count);
  // Throws DeviceError, BudgetError or ModelFileError.
  void load();
  // What load() would do, without loading: opens the device and plans. Not both for one session.
  ResidencyPlan plan_only(PlanRequest& request);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return config_; }
  const ModelFacts& facts() const { return facts_; }
  std::int32_t context_tokens() const { return context_tokens_; }
  // A step's rows are rows of a pass: at least as many as sequences.
  std::int32_t pass_rows() const { return std::max(pass_rows_, sequence_count_); }
  std::int32_t sequence_count() const { return sequence_count_; }
  bool graph() const { return options_.graph; }
  // What was chosen or noticed and is worth a word, oldest first.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // REQUIRES: load() has returned.
  Model& model() { return *model_; }
  DecodeLoop& loop() { return *loop_; }
  const OpenedDevice& device() const { return opened_; }
  // All 0 where they are not known.
  const LaneSpeeds& lane_speeds() const { return model_->options().lane_speeds; }
  std::optional<std::uint64_t> budget_bytes() const { return budget_bytes_; }
  double load_seconds() const { return load_seconds_; }

 private:
  ModelOptions open_device_and_choose();
  // Of weights, as --gpu-layers or --cpu-offload-gb say; nothing where neither is given.
  std::optional<std::uint64_t> asked_cold_bytes(const PlanRequest& request) const;
  // A budget that leaves no more weights than that cold.
  void choose_budget(const PlanRequest& request, std::uint64_t cold_bytes, ModelOptions& model_options);

  SessionOptions options_;
  std::unique_ptr<GgufFile> file_;  // until load() has returned
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelFacts facts_;
  std::int32_t context_tokens_ = 0;
  std::int32_t pass_rows_ = 0;
  std::int32_t sequence_count_ = 1;
  std::vector<std::string> warnings_;

  // In the order in which they must live: the loop uses the model, the model the device.
  OpenedDevice opened_;
  std::optional<Model> model_;
  std::optional<DecodeLoop> loop_;
  std::optional<std::uint64_t> budget_bytes_;
  double load_seconds_ = 0.0;
};

// The cap in bytes on a device; nothing where there is none. Throws DeviceError where the device does not say how much
// memory it has and the limit is a share of it.
std::optional<std::uint64_t> budget_on(const Device& device, const MemoryInfo& info, const MemoryLimit& limit);

ModelFacts model_facts(const GgufFile& file, const std::string& arch);

}  // namespace genai::cli
