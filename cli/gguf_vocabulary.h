// gguf_vocabulary.h - a model file's vocabulary for the tokenizer. Here the two meet: engine/ and tokenizer/ do not
// know each other.
#pragma once
#include "engine/model/gguf_file.h"
#include "tokenizer/vocabulary.h"

namespace genai::cli {

// Throws ModelFileError for a missing or mistyped value. Contradictions inside the vocabulary are the tokenizer's to
// find.
Vocabulary read_vocabulary(const GgufFile& file);

}  // namespace genai::cli
