// pre_tokenizer_rules.h - the table of pre-tokenizers: how text is cut into words before byte-level BPE merges inside
// of them, and what else goes with the name. Data only.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace genai {

struct PreTokenizerRule {
  // PCRE2 patterns, applied one after the other, each inside the pieces that the one before has left. A match is a
  // word, and so is what lies between two matches. \s and \S mean white space of Unicode, not of PCRE2
  // (pre_tokenizer.cpp).
  std::vector<std::string> patterns;
  bool composes = false;          // text is brought to Unicode NFC first
  bool whole_words = false;       // a word that is a token is that token, whatever the merges say
  bool adds_bos_default = false;  // BOS is added where the file does not say
};

// Nothing if the name is not known.
const PreTokenizerRule* find_pre_tokenizer_rule(std::string_view name);

// What "default" means in files.
const PreTokenizerRule& default_pre_tokenizer_rule();

// All names, sorted, separated by ", ".
std::string known_pre_tokenizers();

}  // namespace genai
