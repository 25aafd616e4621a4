#include "cli/verbs.h"

namespace genai::cli {

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
    case Verb::bench:
      return "bench";
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
    case Verb::bench:
      return "measure how fast this machine reads weights from each memory";
  }
  return "";
}

}  // namespace genai::cli
