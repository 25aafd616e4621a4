#include "cli/flags.h"

#include <algorithm>

namespace genai::cli {
namespace {

constexpr std::uint8_t kRun = static_cast<std::uint8_t>(Verb::run);
constexpr std::uint8_t kTokenize = static_cast<std::uint8_t>(Verb::tokenize);
constexpr std::uint8_t kInspect = static_cast<std::uint8_t>(Verb::inspect);
constexpr std::uint8_t kPlan = static_cast<std::uint8_t>(Verb::plan);
constexpr std::uint8_t kPerplexity = static_cast<std::uint8_t>(Verb::perplexity);
constexpr std::uint8_t kText = kRun | kTokenize | kPerplexity;
constexpr std::uint8_t kModel = kRun | kPlan | kPerplexity;  // verbs that place a model on a device
constexpr std::uint8_t kVerify = static_cast<std::uint8_t>(Verb::verify);
constexpr std::uint8_t kPlace = kModel | kVerify;  // a replay may be placed otherwise, but asks for the same
constexpr std::uint8_t kAll = kPlace | kTokenize | kInspect;

std::vector<FlagSpec> make_table() {
  using enum FlagKind;
  const std::string input = "Input";
  const std::string generation = "Generation (greedy unless --temp is above 0)";
  const std::string machine = "Machine";
  const std::string printing = "Output";
  return {
      {Flag::model,
       value,
       {"-m", "--model"},
       "FILE",
       kAll,
       input,
       "the model, a GGUF file; of a split model the first part"},
      {Flag::prompt, value, {"-p", "--prompt"}, "TEXT", kText, input, "the prompt; - reads it from stdin"},
      {Flag::file,
       value,
       {"-f", "--file"},
       "FILE",
       kText,
       input,
       "a file with the prompt, taken byte for byte, a last newline included"},
      {Flag::batch_file,
       value,
       {"--batch-file"},
       "FILE",
       kRun,
       input,
       "many prompts, one a line: plain text, or JSONL with settings of each (prompt, max_tokens, temperature, seed, "
       "stop, ...); - reads stdin; one text each, in this order"},
      {Flag::escape,
       toggle,
       {"-e", "--escape"},
       "",
       kText,
       input,
       "read \\n, \\t, \\r, \\\\, \\\", \\' and \\xHH in -p, --stop and a file of one prompt a line as the bytes they "
       "stand for"},
      {Flag::no_parse_special,
       toggle,
       {"--no-parse-special", "--no-special-parse"},
       "",
       kText,
       input,
       "names of special tokens in the prompt, such as <|im_start|>, are plain text"},
      {Flag::parse_special,
       toggle,
       {"--parse-special"},
       "",
       kText,
       input,
       "they become those tokens (this is the default)"},
      {Flag::no_bos, toggle, {"--no-bos"}, "", kTokenize, input, "add no tokens of the model's own at the ends"},
      {Flag::force,
       toggle,
       {"--force"},
       "",
       kText,
       input,
       "go on with GPT-2's pattern where the model names a pre-tokenizer that is not known"},

      {Flag::predict,
       value,
       {"-n", "--predict", "--n-predict"},
       "N",
       kRun,
       generation,
       "most tokens to generate; -1 (default): until the model ends or the context is full"},
      {Flag::ctx_size,
       value,
       {"-c", "--ctx-size"},
       "N",
       kModel,
       generation,
       "tokens of prompt and answer together; 0: as many as the model was trained for (default: that, 4096 at most)"},
      {Flag::ignore_eos, toggle, {"--ignore-eos"}, "", kRun, generation, "go on after the model's end-of-text tokens"},
      {Flag::stop,
       repeated,
       {"--stop", "-r", "--reverse-prompt"},
       "TEXT",
       kRun,
       generation,
       "end before this text, besides the model's own end; may be given several times"},
      {Flag::temp, value, {"--temp", "--temperature"}, "T", kRun, generation, "temperature (default 0: greedy)"},
      {Flag::seed,
       value,
       {"-s", "--seed"},
       "N",
       kRun,
       generation,
       "seed of the random choices, 0 included; -1 (default): a random one, which the report names"},
      {Flag::top_k, value, {"--top-k"}, "K", kRun, generation, "keep the K best tokens; 0: all (default 40)"},
      {Flag::top_p,
       value,
       {"--top-p"},
       "P",
       kRun,
       generation,
       "keep the best tokens of together at least P; 1: all (default 0.95)"},
      {Flag::min_p,
       value,
       {"--min-p"},
       "P",
       kRun,
       generation,
       "keep tokens of at least P times the best one's probability; 0: all (default 0.05)"},
      {Flag::typical,
       value,
       {"--typical", "--typical-p"},
       "P",
       kRun,
       generation,
       "keep the most typical tokens of together at least P; 1: all (default 1)"},
      {Flag::repeat_penalty,
       value,
       {"--repeat-penalty"},
       "X",
       kRun,
       generation,
       "divide the logits of recent tokens by X; 1: off (default 1)"},
      {Flag::repeat_last_n,
       value,
       {"--repeat-last-n"},
       "N",
       kRun,
       generation,
       "how many tokens are recent; 0: none, -1: all (default 64)"},
      {Flag::presence_penalty,
       value,
       {"--presence-penalty"},
       "X",
       kRun,
       generation,
       "take X off the logits of recent tokens (default 0)"},
      {Flag::frequency_penalty,
       value,
       {"--frequency-penalty"},
       "X",
       kRun,
       generation,
       "take X off for each time that a token is recent (default 0)"},

      {Flag::device,
       value,
       {"--device"},
       "NAME",
       kPlace,
       machine,
       "auto, cpu, cuda or cuda:N (default auto: a GPU where there is one)"},
      {Flag::threads,
       value,
       {"-t", "--threads"},
       "N",
       kPlace,
       machine,
       "processor threads (default: the cores that this process may use)"},
      {Flag::ubatch_size,
       value,
       {"-ub", "--ubatch-size"},
       "N",
       kPlace,
       machine,
       "prompt tokens in one pass over the weights; changes no bit of the result (default 512)"},
      {Flag::batch_size,
       value,
       {"-b", "--batch-size"},
       "N",
       kPlace,
       machine,
       "upper limit of -ub, as in llama.cpp (default 2048)"},
      {Flag::parallel,
       value,
       {"-np", "--parallel"},
       "N",
       kRun | kPlan | kVerify,
       machine,
       "texts that share each pass over the weights, 1 to 16 (default 1): prompts of --batch-file, or the one prompt N "
       "times, with seeds s, s+1, ..."},
      {Flag::gpu_budget,
       value,
       {"--gpu-budget", "--vram-limit"},
       "SIZE",
       kPlace,
       machine,
       "most device memory ever in use: 6GiB, 300MiB, 60% of all there is, or auto: what is free, less a reserve"},
      {Flag::gpu_layers,
       value,
       {"-ngl", "--gpu-layers", "--n-gpu-layers"},
       "N",
       kPlace,
       machine,
       "a budget for as many weights as the last N layers have, or all; the output counts as a layer, as in llama.cpp"},
      {Flag::cpu_offload_gb,
       value,
       {"--cpu-offload-gb"},
       "GIB",
       kPlace,
       machine,
       "a budget that leaves at most so many GiB of weights in host memory, as in vLLM"},
      {Flag::weight_offload,
       value,
       {"--weight-offload"},
       "MODE",
       kPlace,
       machine,
       "where the weights go that the budget has no room for: auto (default), off (nowhere: exit 5), stream (copied "
       "ahead), zerocopy (read over the link), host (host cores), split (stream and host at once); same bytes"},
      {Flag::cold,
       repeated,
       {"--cold"},
       "NAME",
       kPlace,
       machine,
       "keep matrices whose name contains this out of device memory, whatever the budget; may be given several times"},
      {Flag::cache_type_k,
       value,
       {"-ctk", "--cache-type-k"},
       "TYPE",
       kModel,
       machine,
       "element type of cached keys: f16 or f32 (default f16)"},
      {Flag::cache_type_v,
       value,
       {"-ctv", "--cache-type-v"},
       "TYPE",
       kModel,
       machine,
       "of cached values; must be the same"},
      {Flag::cuda_graph,
       toggle,
       {"--cuda-graph"},
       "",
       kRun | kVerify,
       machine,
       "record a step once and replay it (this is the default, on the host too)"},
      {Flag::no_cuda_graph,
       toggle,
       {"--no-cuda-graph"},
       "",
       kRun | kVerify,
       machine,
       "make the calls of each step one by one"},
      {Flag::check,
       toggle,
       {"--check"},
       "",
       kRun | kInspect,
       machine,
       "run: where logits are not finite, find the layer; inspect: check shapes and look at every weight"},

      {Flag::special, toggle, {"--special", "-sp"}, "", kRun, printing, "print special tokens too"},
      {Flag::dump_prompt, toggle, {"--dump-prompt"}, "", kRun, printing, "print the prompt's token ids to stderr"},
      {Flag::chunks,
       value,
       {"--chunks"},
       "N",
       kPerplexity,
       generation,
       "most windows of -c tokens to score; -1 (default): all full ones"},
      {Flag::reference,
       value,
       {"--reference"},
       "FILE",
       kPerplexity,
       generation,
       "another model with the same vocabulary (its F32 form, say): report the KL divergence from it"},
      {Flag::ids, toggle, {"--ids"}, "", kTokenize, printing, "only the ids, on one line: [1, 2, 3]"},
      {Flag::json, toggle, {"--json"}, "", kAll, printing, "one JSON document on stdout"},
      {Flag::report,
       value,
       {"--report"},
       "FORM",
       kRun,
       printing,
       "counters and times after the text, on stderr: json, human or none (default: human on a terminal, else json)"},
      {Flag::report_file, value, {"--report-file"}, "FILE", kRun, printing, "the JSON report into a file as well"},
      {Flag::quiet,
       toggle,
       {"-q", "--quiet"},
       "",
       kAll,
       printing,
       "nothing on stderr but errors and what was asked for"},
      {Flag::log_level,
       value,
       {"--log-level"},
       "LEVEL",
       kAll,
       printing,
       "none, error, warn, info (default) or debug; never touches the text or the report"},
      {Flag::help, toggle, {"-h", "--help"}, "", kAll, printing, "this text"},
      {Flag::version, toggle, {"--version"}, "", kAll, printing, "version of genai and of its arithmetic"},
  };
}

}  // namespace

std::string_view verb_name(Verb verb) {
  switch (verb) {
    case Verb::run:
      return "run";
    case Verb::tokenize:
      return "tokenize";
    case Verb::inspect:
      return "inspect";
    case Verb::plan:
      return "plan";
    case Verb::perplexity:
      return "perplexity";
    case Verb::verify:
      return "verify";
  }
  return "";
}

std::string_view verb_summary(Verb verb) {
  switch (verb) {
    case Verb::run:
      return "generate text from a prompt (may be left out)";
    case Verb::tokenize:
      return "show the tokens of a text";
    case Verb::inspect:
      return "show what is in a model file, and check it";
    case Verb::plan:
      return "show which rows of a model would live where under a budget";
    case Verb::verify:
      return "run again what a report says, and compare every hash";
    case Verb::perplexity:
      return "measure how well a model predicts a text";
  }
  return "";
}

const std::string& FlagSpec::long_name() const {
  for (const std::string& name : names)
    if (name.starts_with("--")) return name;
  return names.front();
}

const std::vector<FlagSpec>& flag_table() {
  static const std::vector<FlagSpec> table = make_table();
  return table;
}

const FlagSpec* find_flag(std::string_view name) {
  for (const FlagSpec& spec : flag_table())
    if (std::find(spec.names.begin(), spec.names.end(), name) != spec.names.end()) return &spec;
  return nullptr;
}

std::vector<std::string> flag_names(Verb verb) {
  std::vector<std::string> names;
  for (const FlagSpec& spec : flag_table())
    if (spec.is_known_to(verb)) names.insert(names.end(), spec.names.begin(), spec.names.end());
  return names;
}

}  // namespace genai::cli
