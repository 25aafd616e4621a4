#include "tokenizer/pre_tokenizer_rules.h"

#include <map>

namespace genai {
namespace {

// The pieces that patterns share. Contractions, letters, numbers, signs, line ends and spaces come in this order in
// most of them; the rules differ in how many digits make a word and in what may stand before letters.
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES R"(\s+(?!\S)|\s+)"
#define LINES_AND_SPACES R"(\s*[\r\n]+|)" SPACES
#define LETTERS_AFTER_ANY R"([^\r\n\p{L}\p{N}]?\p{L}+)"
#define SIGNS_AND_LINES R"( ?[^\s\p{L}\p{N}]+[\r\n]*)"
// A run of capitals (or caseless letters) and a run of small ones, with at least one of the latter or of the former.
#define CASED_HEAD R"([^\r\n\p{L}\p{N}]?)"
#define NOT_SMALL R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define NOT_CAPITAL R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define CASED_WORDS(ending) \
  CASED_HEAD NOT_SMALL "*" NOT_CAPITAL "+" ending "|" CASED_HEAD NOT_SMALL "+" NOT_CAPITAL "*" ending

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|)" SPACES;
constexpr const char* kLlama3 =
    CONTRACTION "|" LETTERS_AFTER_ANY R"(|\p{N}{1,3}|)" SIGNS_AND_LINES "|" LINES_AND_SPACES;
constexpr const char* kQwen2 = CONTRACTION "|" LETTERS_AFTER_ANY R"(|\p{N}|)" SIGNS_AND_LINES "|" LINES_AND_SPACES;
constexpr const char* kQwen35 =
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" LINES_AND_SPACES;
constexpr const char* kTekken = CASED_WORDS("") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" LINES_AND_SPACES;
constexpr const char* kGpt4o =
    CASED_WORDS(CONTRACTION "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" LINES_AND_SPACES;
constexpr const char* kYoutu = CASED_WORDS(CONTRACTION "?") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" LINES_AND_SPACES;
constexpr const char* kJais2 = CONTRACTION
    "|" LETTERS_AFTER_ANY R"(|\p{N}{1,3}|)" SIGNS_AND_LINES
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S))"
    R"(|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr const char* kSeedCoder =
    CONTRACTION "|" LETTERS_AFTER_ANY R"(|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" LINES_AND_SPACES;
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)" SPACES;
constexpr const char* kBloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+)";
constexpr const char* kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|)" LINES_AND_SPACES;
// Like kGpt4o, but ideographs are no letters in words: a negated class of everything else stands for each run.
#define NOT_SMALL_NOR_HAN R"([^\p{sc:Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}])"
#define NOT_CAPITAL_NOR_HAN R"([^\p{sc:Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}])"
constexpr const char* kKimiK2 = R"(\p{sc:Han}+|)" CASED_HEAD NOT_SMALL_NOR_HAN "*" NOT_CAPITAL_NOR_HAN "+" CONTRACTION
                                "?|" CASED_HEAD NOT_SMALL_NOR_HAN "+" NOT_CAPITAL_NOR_HAN "*" CONTRACTION
                                "?"
                                R"(|\p{N}{1,3}|)" SIGNS_AND_LINES "|" LINES_AND_SPACES;

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kUpToThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";
constexpr const char* kLineEnd = R"([\r\n])";
// The look behind changes no match; without it every space of a long run would be tried as the first.
constexpr const char* kTrailingSpaces = R"((?<!\s)\s++$)";
constexpr const char* kIdeographsAndHangul = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kIdeographsAndKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kEastAsian =
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B})"
    R"(\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+)"
    R"(|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
// Cased letters, as an older Unicode knew them.
constexpr const char* kDeepseekLetters =
    R"(\s?[)"
    R"(A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF})"
    R"(\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F})"
    R"(\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481})"
    R"(\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD})"
    R"(\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A})"
    R"(\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59})"
    R"(\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126})"
    R"(\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E})"
    R"(\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3})"
    R"(\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E})"
    R"(\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A})"
    R"(\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr const char* kDeepseekSigns =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";

using Rules = std::map<std::string, PreTokenizerRule, std::less<>>;

Rules make_rules() {
  Rules rules;
  const auto add = [&rules](std::initializer_list<const char*> names, const PreTokenizerRule& rule) {
    for (const char* name : names) rules.emplace(name, rule);
  };
  add({"default"}, {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kThreeDigits}});
  add({"gpt-2", "phi-2", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum", "exaone4"},
      {.patterns = {kGpt2}});
  add({"mpt", "olmo"}, {.patterns = {kGpt2}, .composes = true});
  add({"starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b"}, {.patterns = {kDigit, kGpt2}});
  add({"command-r"}, {.patterns = {kDigit, kGpt2}, .composes = true});
  add({"falcon"}, {.patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeDigits}});
  add({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
      {.patterns = {kLlama3}, .whole_words = true, .adds_bos_default = true});
  add({"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {.patterns = {kLlama3}});
  add({"jais-2"}, {.patterns = {kJais2}});
  add({"qwen2"}, {.patterns = {kQwen2}, .composes = true});
  add({"qwen35"}, {.patterns = {kQwen35}, .composes = true});
  add({"deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "solar-open", "grok-2"}, {.patterns = {kQwen2}});
  add({"deepseek-llm"},
      {.patterns = {kLineEnd, kDeepseekLetters, kDeepseekSigns, R"(\s+$)", kIdeographsAndHangul, R"(\p{N}+)"}});
  add({"deepseek-coder"}, {.patterns = {kLineEnd, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kIdeographsAndHangul, kDigit}});
  add({"deepseek-v3", "hunyuan-dense", "joyai-llm", "step35"},
      {.patterns = {kUpToThreeDigits, kIdeographsAndKana, kDeepseek3}});
  add({"youtu"}, {.patterns = {kEastAsian, kYoutu}, .whole_words = true});
  add({"tekken"}, {.patterns = {kTekken}, .whole_words = true, .adds_bos_default = true});
  add({"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {.patterns = {kGpt4o}});
  add({"kimi-k2"}, {.patterns = {kKimiK2}});
  add({"seed-coder"}, {.patterns = {kSeedCoder}});
  add({"bailingmoe", "bailingmoe2", "llada-moe"}, {.patterns = {kBailing}});
  add({"bloom", "poro-chat", "gpt3-finnish"}, {.patterns = {kBloom}});
  add({"viking"}, {.patterns = {kBloom, kDigit}});
  return rules;
}

const Rules& rules() {
  static const Rules all = make_rules();
  return all;
}

}  // namespace

const PreTokenizerRule* find_pre_tokenizer_rule(std::string_view name) {
  const auto found = rules().find(name);
  return found == rules().end() ? nullptr : &found->second;
}

const PreTokenizerRule& default_pre_tokenizer_rule() { return rules().at("default"); }

std::string known_pre_tokenizers() {
  std::string names;
  for (const auto& [name, rule] : rules()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace genai
