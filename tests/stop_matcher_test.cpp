#include "engine/decode/stop_matcher.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decode/random.h"
#include "engine/error.h"
#include "tests/catch.h"

using namespace genai;

namespace {

// Feeds the pieces one by one and flushes; the text that a user would see.
std::string visible_text(StopMatcher& matcher, const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += matcher.push(piece);
  return text + matcher.flush();
}

// What must be true after `seen`: the first position at which an occurrence is complete or still possible.
struct Judgement {
  std::size_t free_bytes;  // those before that position
  bool stopped;            // an occurrence there is complete
};

Judgement judge(const std::string& seen, const std::vector<std::string>& stops) {
  for (std::size_t start = 0; start < seen.size(); ++start) {
    const std::string_view rest = std::string_view(seen).substr(start);
    bool possible = false;
    for (const std::string& stop : stops) {
      if (rest.starts_with(stop)) return {start, true};
      possible = possible || stop.starts_with(rest);
    }
    if (possible) return {start, false};
  }
  return {seen.size(), false};
}

// The cut in a whole text, -1 for none.
std::size_t earliest_occurrence(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t earliest = std::string::npos;
  for (const std::string& stop : stops) earliest = std::min(earliest, text.find(stop));
  return earliest;
}

std::uint64_t random_below(std::uint64_t limit, std::uint64_t seed, std::uint64_t& counter) {
  return static_cast<std::uint64_t>(uniform_random(seed, 0, counter++) * static_cast<double>(limit));
}

}  // namespace

TEST_CASE("without stop strings every byte passes at once") {
  StopMatcher matcher({});
  REQUIRE(matcher.push("abc") == "abc");
  REQUIRE(matcher.push("").empty());
  REQUIRE(matcher.push(std::string(1, '\0')) == std::string(1, '\0'));
  REQUIRE(matcher.flush().empty());
  REQUIRE_FALSE(matcher.stopped());
  REQUIRE_FALSE(matcher.matched_stop().has_value());
}

TEST_CASE("an empty stop string is a usage error") {
  REQUIRE_THROWS_AS(StopMatcher({""}), UsageError);
  REQUIRE_THROWS_AS(StopMatcher({"a", ""}), UsageError);
}

TEST_CASE("a stop inside one token keeps the text before it") {
  StopMatcher matcher({"ot"});
  REQUIRE(matcher.push("I am") == "I am");
  REQUIRE(matcher.push(" not here") == " n");
  REQUIRE(matcher.stopped());
  REQUIRE(matcher.matched_stop() == 0u);
  REQUIRE(matcher.push(" more").empty());
  REQUIRE(matcher.flush().empty());
}

TEST_CASE("a stop across tokens is held back until it is decided") {
  StopMatcher matcher({"</s>"});
  REQUIRE(matcher.push("hello <") == "hello ");
  REQUIRE(matcher.push("/").empty());
  REQUIRE(matcher.push("s").empty());
  REQUIRE_FALSE(matcher.stopped());
  REQUIRE(matcher.push("x") == "</sx");
  REQUIRE(matcher.push("<</") == "<");
  REQUIRE(matcher.push("s>tail").empty());
  REQUIRE(matcher.stopped());
}

TEST_CASE("flush releases what was held back for a stop that never came") {
  StopMatcher matcher({"END"});
  REQUIRE(matcher.push("the EN") == "the ");
  REQUIRE(matcher.flush() == "EN");
  REQUIRE_FALSE(matcher.stopped());
  REQUIRE(matcher.flush().empty());
}

TEST_CASE("the stop that begins first wins even if another is complete before it") {
  StopMatcher cut_early({"abcdef", "cd"});
  REQUIRE(cut_early.push("xabcd") == "x");
  REQUIRE_FALSE(cut_early.stopped());
  REQUIRE(cut_early.matched_stop() == 1u);
  REQUIRE(cut_early.push("ef").empty());
  REQUIRE(cut_early.stopped());
  REQUIRE(cut_early.matched_stop() == 0u);

  StopMatcher cut_late({"abcdef", "cd"});
  REQUIRE(cut_late.push("xabcd") == "x");
  REQUIRE(cut_late.push("eX") == "ab");
  REQUIRE(cut_late.stopped());
  REQUIRE(cut_late.matched_stop() == 1u);

  StopMatcher ended({"abcdef", "cd"});
  REQUIRE(ended.push("xabcd") == "x");
  REQUIRE(ended.flush() == "ab");
  REQUIRE(ended.stopped());
  REQUIRE(ended.matched_stop() == 1u);
}

TEST_CASE("of two stops that begin together the shorter one stops at once") {
  StopMatcher matcher({"abc", "ab"});
  REQUIRE(matcher.push("zab") == "z");
  REQUIRE(matcher.stopped());
  REQUIRE(matcher.matched_stop() == 1u);
}

TEST_CASE("stops are bytes: zero bytes, invalid UTF-8 and half code points") {
  StopMatcher zero({std::string("a\0b", 3)});
  REQUIRE(zero.push(std::string("a\0", 2)).empty());
  REQUIRE(zero.push(std::string("\0b", 2)) == std::string("a\0\0b", 4));
  REQUIRE(zero.push(std::string("a\0b", 3)).empty());
  REQUIRE(zero.stopped());

  StopMatcher emoji({"\xF0\x9F\x98\x8A"});
  REQUIRE(emoji.push("hi \xF0\x9F") == "hi ");
  REQUIRE(emoji.push("\x98\x80\xFF") == "\xF0\x9F\x98\x80\xFF");
  REQUIRE(emoji.push("\xF0\x9F\x98").empty());
  REQUIRE(emoji.push("\x8A").empty());
  REQUIRE(emoji.stopped());
}

TEST_CASE("a stop given twice counts as the first") {
  StopMatcher matcher({"x", "stop", "stop"});
  REQUIRE(matcher.push("a stop") == "a ");
  REQUIRE(matcher.matched_stop() == 1u);
}

TEST_CASE("a matcher that was reset knows nothing of the last text") {
  StopMatcher matcher({"ab"});
  REQUIRE(matcher.push("xa") == "x");
  matcher.reset();
  REQUIRE(matcher.push("b") == "b");
  REQUIRE(matcher.push("ab").empty());
  REQUIRE(matcher.stopped());
  matcher.reset();
  REQUIRE_FALSE(matcher.stopped());
  REQUIRE_FALSE(matcher.matched_stop().has_value());
  REQUIRE(matcher.push("ca") == "c");
  REQUIRE(matcher.flush() == "a");
}

TEST_CASE("random texts, stops and splits agree with a search by hand after each piece") {
  int stopped_count = 0;
  int late_count = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    std::uint64_t counter = 0;
    const std::uint64_t letters = 1 + random_below(3, seed, counter);
    const auto random_string = [&](std::uint64_t length) {
      std::string text;
      for (std::uint64_t i = 0; i < length; ++i)
        text += static_cast<char>('a' + static_cast<char>(random_below(letters, seed, counter)));
      return text;
    };
    std::vector<std::string> stops;
    const std::uint64_t stop_count = 1 + random_below(4, seed, counter);
    for (std::uint64_t i = 0; i < stop_count; ++i) stops.push_back(random_string(1 + random_below(7, seed, counter)));
    const std::string text = random_string(random_below(40, seed, counter));

    StopMatcher matcher(stops);
    std::string seen;
    std::string visible;
    bool found = false;
    std::size_t position = 0;
    while (position < text.size() && !matcher.stopped()) {
      const std::size_t length = 1 + random_below(5, seed, counter);
      const std::string piece = text.substr(position, length);
      position += piece.size();
      visible += matcher.push(piece);
      seen += piece;
      const Judgement expected = judge(seen, stops);
      REQUIRE(visible == seen.substr(0, expected.free_bytes));
      REQUIRE(matcher.stopped() == expected.stopped);
      found = found || (matcher.matched_stop().has_value() && !matcher.stopped());
    }
    visible += matcher.flush();
    const std::size_t cut = earliest_occurrence(text, stops);
    REQUIRE(visible == text.substr(0, cut));
    REQUIRE(matcher.stopped() == (cut != std::string::npos));
    if (cut != std::string::npos) REQUIRE(text.substr(cut).starts_with(stops[*matcher.matched_stop()]));
    stopped_count += matcher.stopped();
    late_count += found;

    matcher.reset();
    std::vector<std::string> bytes;
    for (const char byte : text) bytes.emplace_back(1, byte);
    REQUIRE(visible_text(matcher, bytes) == visible);
    matcher.reset();
    REQUIRE(visible_text(matcher, {text}) == visible);
  }
  REQUIRE(stopped_count > 1000);
  REQUIRE(late_count > 100);
}

TEST_CASE("long stops that almost match pass through complete and in order") {
  const std::string almost(20000, 'a');
  StopMatcher matcher({almost + "b", almost + "c"});
  std::string text;
  for (int i = 0; i < 60000; ++i) text += matcher.push("a");
  REQUIRE(text.size() == 40000);
  text += matcher.push("d");
  REQUIRE(text == std::string(60000, 'a') + "d");
  text += matcher.push(almost + "c");
  REQUIRE(matcher.stopped());
  REQUIRE(matcher.matched_stop() == 1u);
  REQUIRE(text.size() == 60001);
}
