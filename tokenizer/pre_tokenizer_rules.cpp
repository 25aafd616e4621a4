#include "tokenizer/pre_tokenizer_rules.h"

#include <functional>
#include <initializer_list>
#include <map>

namespace genai {
namespace {

using Rules = std::map<std::string, PreTokenizerRule, std::less<>>;

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

// Words where a run of capitals and a run of small letters follow each other (letters without case and marks belong to
// both). At least one of the latter, else at least one of the former.
std::string cased_words(const std::string& not_small, const std::string& not_capital, const std::string& ending) {
  const std::string before = R"([^\r\n\p{L}\p{N}]?)";
  return before + not_small + "*" + not_capital + "+" + ending + "|" + before + not_small + "+" + not_capital + "*" +
         ending;
}

Rules make_rules() {
  // The pieces that patterns share. Contractions, letters, numbers, signs, line ends and spaces come in this order in
  // most of them; the rules differ in how many digits make a word and in what may stand before letters.
  const std::string contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  const std::string letters = R"([^\r\n\p{L}\p{N}]?\p{L}+)";
  const std::string signs = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)";
  const std::string signs_and_slashes = R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)";
  const std::string lines = R"(\s*[\r\n]+)";
  const std::string spaces = R"(\s+(?!\S)|\s+)";
  const std::string lines_and_spaces = lines + "|" + spaces;
  const std::string not_small = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
  const std::string not_capital = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  // The same without ideographs, written as what they are not.
  const std::string not_small_nor_han = R"([^\p{sc:Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}])";
  const std::string not_capital_nor_han = R"([^\p{sc:Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}])";

  const std::string digit = R"(\p{N})";
  const std::string digits = R"(\p{N}+)";
  const std::string up_to_three_digits = R"(\p{N}{1,3})";
  const std::string three_digits = "[0-9][0-9][0-9]";
  const std::string line_end = R"([\r\n])";
  // The look behind changes no match; without it every space of a long run could be tried as the first.
  const std::string trailing_spaces = R"((?<!\s)\s++$)";
  const std::string ideographs_and_hangul = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
  const std::string ideographs_and_kana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
  const std::string hangul = R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+)";
  const std::string bopomofo = R"([\x{3105}-\x{312F}]+)";
  const std::string east_asian_signs =
      R"([\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F})"
      R"(\x{FE30}-\x{FE4F}]+)";
  const std::string deepseek_signs =
      R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
  const std::string halving_spaces =
      R"(\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S))"
      R"(|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";

  const std::string gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|)" + spaces;
  const std::string before_digits = contraction + "|" + letters + "|";
  const std::string after_digits = "|" + signs + "|" + lines_and_spaces;
  const std::string llama3 = before_digits + up_to_three_digits + after_digits;
  const std::string qwen2 = before_digits + digit + after_digits;
  const std::string qwen35 = contraction + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|)" + digit +
                             R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" + lines_and_spaces;
  const std::string jais2 = before_digits + up_to_three_digits + "|" + signs + "|" + lines + "|" + halving_spaces;
  const std::string seed_coder = before_digits + digit + R"(| ?[^\s\p{L}\p{N}\r\n]+|)" + lines_and_spaces;
  const std::string bailing =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)" + spaces;
  const std::string after_cased_digits = "|" + signs_and_slashes + "|" + lines_and_spaces;
  const std::string tekken = cased_words(not_small, not_capital, "") + "|" + digit + after_cased_digits;
  const std::string cased_and_contractions = cased_words(not_small, not_capital, contraction + "?");
  const std::string gpt4o = cased_and_contractions + "|" + up_to_three_digits + after_cased_digits;
  const std::string youtu = cased_and_contractions + "|" + digit + after_cased_digits;
  const std::string kimi_k2 = R"(\p{sc:Han}+|)" +
                              cased_words(not_small_nor_han, not_capital_nor_han, contraction + "?") + "|" +
                              up_to_three_digits + after_digits;
  const std::string deepseek3 =
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
      R"(| ?[\p{P}\p{S}]+[\r\n]*|)" +
      lines_and_spaces;
  const std::string bloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+)";

  Rules rules;
  const auto add = [&rules](std::initializer_list<const char*> names, const PreTokenizerRule& rule) {
    for (const char* name : names) rules.emplace(name, rule);
  };
  add({"default"}, {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", gpt2, digits, three_digits}});
  add({"gpt-2", "phi-2", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum", "exaone4"},
      {.patterns = {gpt2}});
  add({"mpt", "olmo"}, {.patterns = {gpt2}, .composes = true});
  add({"starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b"}, {.patterns = {digit, gpt2}});
  add({"command-r"}, {.patterns = {digit, gpt2}, .composes = true});
  add({"falcon"}, {.patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2, three_digits}});
  add({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
      {.patterns = {llama3}, .whole_words = true, .adds_bos_default = true});
  add({"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {.patterns = {llama3}});
  add({"jais-2"}, {.patterns = {jais2}});
  add({"qwen2"}, {.patterns = {qwen2}, .composes = true});
  add({"qwen35"}, {.patterns = {qwen35}, .composes = true});
  add({"deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "solar-open", "grok-2"}, {.patterns = {qwen2}});
  add({"deepseek-llm"},
      {.patterns = {line_end, kDeepseekLetters, deepseek_signs, trailing_spaces, ideographs_and_hangul, digits}});
  add({"deepseek-coder"}, {.patterns = {line_end, R"(\s?\p{L}+)", R"(\s?\p{P}+)", ideographs_and_hangul, digit}});
  add({"deepseek-v3", "hunyuan-dense", "joyai-llm", "step35"},
      {.patterns = {up_to_three_digits, ideographs_and_kana, deepseek3}});
  add({"youtu"}, {.patterns = {hangul + "|" + east_asian_signs + "|" + bopomofo + "|" + ideographs_and_kana, youtu},
                  .whole_words = true});
  add({"tekken"}, {.patterns = {tekken}, .whole_words = true, .adds_bos_default = true});
  add({"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {.patterns = {gpt4o}});
  add({"kimi-k2"}, {.patterns = {kimi_k2}});
  add({"seed-coder"}, {.patterns = {seed_coder}});
  add({"bailingmoe", "bailingmoe2", "llada-moe"}, {.patterns = {bailing}});
  add({"bloom", "poro-chat", "gpt3-finnish"}, {.patterns = {bloom}});
  add({"viking"}, {.patterns = {bloom, digit}});
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
