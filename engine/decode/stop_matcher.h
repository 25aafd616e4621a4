// stop_matcher.h - finds stop strings in the bytes of a growing text, wherever the tokens' borders fall. The text is
// cut where the occurrence with the earliest start begins; a byte is released as soon as no occurrence can begin at it
// or before it. Both depend on the bytes alone, not on how they are cut into tokens. Linear time (Aho-Corasick). One
// thread.
//
// States
//   searching  no occurrence yet; held back is the longest end of the text that begins some stop string
//   found      an occurrence is complete, but one that began earlier may still become complete
//   stopped    the cut is decided; everything from there on is dropped
// `found` matters with stops such as "abcd" and "b": after "ab" the text must wait for the next bytes.
//
// Released bytes may end inside a code point: put the UTF-8 filter behind this one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace genai {

class StopMatcher {
 public:
  // No strings: everything passes through. Throws UsageError for an empty string, which would match everywhere.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Takes the bytes of the next token; returns the text that is now free. Nothing after stopped().
  std::string push(std::string_view bytes);
  // The text has ended: returns what is still held back, up to the cut where one was found.
  std::string flush();
  // Ready for a new text.
  void reset();

  bool stopped() const { return stopped_; }
  // Which of the strings ended the text: its index in the constructor's list. Of several that begin at the same byte it
  // is the one that was complete first. Set from `found` on, final when stopped() or after flush().
  std::optional<std::size_t> matched_stop() const { return matched_stop_; }

 private:
  // A node of the tree of all prefixes. Siblings form a list.
  struct Node {
    std::int32_t first_child = -1;
    std::int32_t next_sibling = -1;
    std::int32_t fallback = 0;  // the longest proper suffix that is a prefix of some stop
    std::size_t depth = 0;
    std::size_t matched_bytes = 0;  // length of the longest stop that ends here, 0 for none
    std::size_t matched_stop = 0;
    unsigned char byte = 0;
  };

  std::int32_t child(std::int32_t node, unsigned char byte) const;
  void insert(const std::string& stop, std::size_t index);
  void link_fallbacks();
  std::string release_until(std::uint64_t end);

  std::vector<Node> nodes_;
  std::int32_t node_ = 0;
  std::uint64_t position_ = 0;  // bytes seen
  std::uint64_t released_ = 0;  // bytes given out
  std::string held_;            // the bytes from released_ to position_, behind held_start_ bytes of waste
  std::size_t held_start_ = 0;
  std::optional<std::uint64_t> cut_;  // start of the earliest occurrence so far
  std::optional<std::size_t> matched_stop_;
  bool stopped_ = false;
};

}  // namespace genai
