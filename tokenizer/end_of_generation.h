// end_of_generation.h - which tokens end a text. A file names at most three of them; the others are known by their
// names only, so there is a list of those. Pure functions.
#pragma once
#include <cstdint>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace genai {

// Makes control tokens of tokens whose names leave no doubt (<|im_end|> and the like) but whose type says otherwise, so
// that they are neither shown nor read from a text that is not trusted. REQUIRES: one type a token.
void mark_end_tokens_as_control(Vocabulary& vocabulary);

// Ascending. The ids that the file names, and control and unknown tokens with a known name. Names that are also markup
// or words (</s>, [EOS]) count by their type alone: in some vocabularies </s> is the closing tag of HTML.
std::vector<std::int32_t> find_end_of_generation_ids(const Vocabulary& vocabulary);

}  // namespace genai
