// utf8_stream_test.cpp - text that arrives in pieces cut anywhere leaves in pieces cut between code points.
#include "tokenizer/utf8_stream.h"

#include <string>
#include <string_view>
#include <vector>

#include "tests/catch.h"
#include "tokenizer/utf8.h"

namespace genai {
namespace {

constexpr std::string_view kEmoji = "\xF0\x9F\x98\x8A";  // U+1F60A
constexpr std::string_view kEuro = "\xE2\x82\xAC";       // U+20AC
constexpr std::string_view kAccent = "\xC3\xA9";         // U+00E9

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

TEST_CASE("utf8 stream emits an emoji only when its fourth byte arrives") {
  Utf8Stream stream;
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(stream.push(kEmoji.substr(i, 1)).empty());
    CHECK(stream.held_bytes() == i + 1);
  }
  CHECK(stream.push(kEmoji.substr(3)) == kEmoji);
  CHECK(stream.held_bytes() == 0);
  CHECK(stream.flush().empty());
}

TEST_CASE("utf8 stream ends every emission on a code point and loses no byte, wherever the text is cut") {
  const std::string text = std::string("a ") + std::string(kAccent) + std::string(kEmoji) + "b" + std::string(kEuro) +
                           std::string(kEmoji) + std::string(kEmoji) + "\n";
  for (std::size_t first_cut = 0; first_cut <= text.size(); ++first_cut) {
    for (std::size_t second_cut = first_cut; second_cut <= text.size(); ++second_cut) {
      Utf8Stream stream;
      std::string seen;
      for (const std::string_view piece : {std::string_view(text).substr(0, first_cut),
                                           std::string_view(text).substr(first_cut, second_cut - first_cut),
                                           std::string_view(text).substr(second_cut)}) {
        const std::string emitted = stream.push(piece);
        CHECK(whole_utf8_bytes(emitted) == emitted.size());
        CHECK(stream.held_bytes() <= 3);
        seen += emitted;
      }
      CHECK(seen == text);
      CHECK(stream.flush().empty());
    }
  }
}

TEST_CASE("utf8 stream passes invalid bytes through at once") {
  const std::vector<std::string> invalid = {
      bytes({0x80}),              // a continuation without a start
      bytes({0xBF, 0xBF}),        // two of them
      bytes({0xC0, 0xAF}),        // a slash in two bytes
      bytes({0xC1, 0xBF}),        // overlong
      bytes({0xE0, 0x80, 0xAF}),  // a slash in three bytes
      bytes({0xED, 0xA0, 0x80}),  // a surrogate
      bytes({0xF0, 0x80, 0x80, 0xAF}),
      bytes({0xF4, 0x90, 0x80, 0x80}),  // above U+10FFFF
      bytes({0xF5, 0x80, 0x80, 0x80}),
      bytes({0xFE}),
      bytes({0xFF}),
  };
  for (const std::string& text : invalid) {
    Utf8Stream stream;
    CHECK(stream.push(text) == text);
    CHECK(stream.held_bytes() == 0);
  }
}

TEST_CASE("utf8 stream lets go of an unfinished code point when something else follows") {
  for (const std::size_t kept : {1u, 2u, 3u}) {
    Utf8Stream stream;
    const std::string start(kEmoji.substr(0, kept));
    CHECK(stream.push(start).empty());
    CHECK(stream.push("x") == start + "x");
    CHECK(stream.push(start).empty());
    CHECK(stream.push(kEuro) == start + std::string(kEuro));
    CHECK(stream.push(start).empty());
    CHECK(stream.push(start.substr(0, 1)) == start);
    CHECK(stream.flush() == start.substr(0, 1));
  }
}

TEST_CASE("utf8 stream flushes the unfinished bytes exactly and is ready again") {
  Utf8Stream stream;
  CHECK(stream.push("ok" + std::string(kEmoji.substr(0, 2))) == "ok");
  CHECK(stream.flush() == kEmoji.substr(0, 2));
  CHECK(stream.flush().empty());
  CHECK(stream.push(kAccent) == kAccent);
}

TEST_CASE("utf8 knows every code point and no surrogate") {
  for (unsigned code_point = 0x80; code_point < 0x110000; ++code_point) {
    std::string text;
    if (code_point < 0x800) {
      text = bytes({static_cast<int>(0xC0 | code_point >> 6), static_cast<int>(0x80 | (code_point & 0x3F))});
    } else if (code_point < 0x10000) {
      text = bytes({static_cast<int>(0xE0 | code_point >> 12), static_cast<int>(0x80 | (code_point >> 6 & 0x3F)),
                    static_cast<int>(0x80 | (code_point & 0x3F))});
    } else {
      text = bytes({static_cast<int>(0xF0 | code_point >> 18), static_cast<int>(0x80 | (code_point >> 12 & 0x3F)),
                    static_cast<int>(0x80 | (code_point >> 6 & 0x3F)), static_cast<int>(0x80 | (code_point & 0x3F))});
    }
    const bool is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
    const Utf8Step step = look_at_utf8(text);
    if ((step.kind == Utf8Kind::kWhole) == is_surrogate || (!is_surrogate && step.length_bytes != text.size())) {
      FAIL("U+" << std::hex << code_point);
    }
    for (std::size_t length = 1; length < text.size() && !is_surrogate; ++length) {
      if (look_at_utf8(text.substr(0, length)).kind != Utf8Kind::kUnfinished) FAIL("U+" << std::hex << code_point);
    }
  }
  SUCCEED();
}

}  // namespace
}  // namespace genai
