#include "engine/decode/stop_matcher.h"

#include <algorithm>

#include "engine/error.h"

namespace genai {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (std::size_t index = 0; index < stops.size(); ++index) {
    if (stops[index].empty())
      throw UsageError("a stop string is empty",
                       "an empty string would end every text before its first byte: leave it out");
    insert(stops[index], index);
  }
  link_fallbacks();
}

std::int32_t StopMatcher::child(std::int32_t node, unsigned char byte) const {
  std::int32_t candidate = nodes_[static_cast<std::size_t>(node)].first_child;
  while (candidate >= 0 && nodes_[static_cast<std::size_t>(candidate)].byte != byte)
    candidate = nodes_[static_cast<std::size_t>(candidate)].next_sibling;
  return candidate;
}

void StopMatcher::insert(const std::string& stop, std::size_t index) {
  std::int32_t node = 0;
  for (const char letter : stop) {
    const auto byte = static_cast<unsigned char>(letter);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      Node& parent = nodes_[static_cast<std::size_t>(node)];
      Node added{.next_sibling = parent.first_child, .depth = parent.depth + 1, .byte = byte};
      parent.first_child = next;
      nodes_.push_back(added);
    }
    node = next;
  }
  Node& end = nodes_[static_cast<std::size_t>(node)];
  if (end.matched_bytes != 0) return;  // given twice: the first one counts
  end.matched_bytes = stop.size();
  end.matched_stop = index;
}

// By breadth, so that a node's fallback, which is shallower, is complete before the node is.
void StopMatcher::link_fallbacks() {
  std::vector<std::int32_t> queue{0};
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const std::int32_t parent = queue[next];
    std::int32_t node = nodes_[static_cast<std::size_t>(parent)].first_child;
    for (; node >= 0; node = nodes_[static_cast<std::size_t>(node)].next_sibling) {
      queue.push_back(node);
      Node& here = nodes_[static_cast<std::size_t>(node)];
      if (parent == 0) continue;  // depth 1: falls back to the root
      std::int32_t shorter = nodes_[static_cast<std::size_t>(parent)].fallback;
      std::int32_t target = child(shorter, here.byte);
      while (target < 0 && shorter != 0) {
        shorter = nodes_[static_cast<std::size_t>(shorter)].fallback;
        target = child(shorter, here.byte);
      }
      here.fallback = std::max(target, 0);
      const Node& suffix = nodes_[static_cast<std::size_t>(here.fallback)];
      if (here.matched_bytes == 0) {
        here.matched_bytes = suffix.matched_bytes;
        here.matched_stop = suffix.matched_stop;
      }
    }
  }
}

std::string StopMatcher::push(std::string_view bytes) {
  if (stopped_) return {};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    std::int32_t next = child(node_, byte);
    while (next < 0 && node_ != 0) {
      node_ = nodes_[static_cast<std::size_t>(node_)].fallback;
      next = child(node_, byte);
    }
    node_ = std::max(next, 0);
    ++position_;
    const Node& here = nodes_[static_cast<std::size_t>(node_)];
    if (here.matched_bytes > 0) {
      const std::uint64_t start = position_ - here.matched_bytes;
      if (!cut_ || start < *cut_) {
        cut_ = start;
        matched_stop_ = here.matched_stop;
      }
    }
    // Every occurrence that is still incomplete begins at position_ - depth or later.
    if (cut_ && position_ - here.depth >= *cut_) {
      held_.append(bytes.substr(0, i + 1));
      stopped_ = true;
      return release_until(*cut_);
    }
  }
  held_.append(bytes);
  const std::uint64_t free_end = position_ - nodes_[static_cast<std::size_t>(node_)].depth;
  return release_until(free_end);
}

std::string StopMatcher::flush() {
  const std::uint64_t end = cut_.value_or(position_);
  stopped_ = stopped_ || cut_.has_value();
  node_ = 0;
  return release_until(end);
}

void StopMatcher::reset() {
  node_ = 0;
  position_ = 0;
  released_ = 0;
  held_.clear();
  held_start_ = 0;
  cut_.reset();
  matched_stop_.reset();
  stopped_ = false;
}

// The waste at the front of held_ is cleared only when it is the larger part, so each byte is moved a bounded number of
// times however long the stop strings are.
std::string StopMatcher::release_until(std::uint64_t end) {
  if (end <= released_) return {};
  const auto count = static_cast<std::size_t>(end - released_);
  std::string released = held_.substr(held_start_, count);
  released_ = end;
  held_start_ += count;
  if (2 * held_start_ >= held_.size()) {
    held_.erase(0, held_start_);
    held_start_ = 0;
  }
  return released;
}

}  // namespace genai
