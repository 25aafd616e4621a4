// help.h - what --help and --version print, made from the table of flags.
#pragma once
#include <string>

#include "cli/flags.h"

namespace genai::cli {

std::string help_text(Verb verb);
std::string version_text();

}  // namespace genai::cli
