// vocabulary_check.h - what must hold for a vocabulary before any algorithm sees it, whatever its kind.
#pragma once
#include "tokenizer/vocabulary.h"

namespace genai {

// Returns the vocabulary with one type a token. Afterwards: at least one token, no two alike, an empty one only if its
// type is control; types within the enum; scores finite and none or one a token; special ids inside the vocabulary; BOS
// and EOS exist where the file wants them added. Throws TokenizerError.
Vocabulary check_vocabulary(Vocabulary vocabulary);

}  // namespace genai
