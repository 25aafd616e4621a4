#include "engine/residency/strip_order.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace genai {

// Strips that come in at this share or before.
std::int64_t StripOrder::Entry::count_at(double share) const {
  auto count =
      std::clamp<std::int64_t>(std::llround(std::min(share / scale, 1.0) * static_cast<double>(strips)), 0, strips);
  while (count > 0 && share_of(count) > share) --count;
  while (count < strips && share_of(count + 1) <= share) ++count;
  return count;
}

StripOrder::Strips StripOrder::at_share(Strips given, double share) const {
  for (const Entry& entry : gradual_) given[entry.matrix] += entry.count_at(share);
  return given;
}

StripOrder::Strips StripOrder::longest_prefix(Strips given, const std::function<bool(const Strips&)>& fits) const {
  constexpr double kWhole = std::numeric_limits<double>::max();
  double share = 0.0;
  if (fits(at_share(given, kWhole))) {
    share = kWhole;
  } else {
    // Between these two shares few strips are left after so many halvings.
    constexpr int kHalvings = 50;
    double too_much = 1.0;
    for (const Entry& entry : gradual_) too_much = std::max(too_much, entry.share_of(entry.strips));
    for (int halving = 0; halving < kHalvings; ++halving) {
      const double middle = 0.5 * (share + too_much);
      (fits(at_share(given, middle)) ? share : too_much) = middle;
    }
  }
  Strips strips = at_share(given, share);
  const auto take = [&](const Entry& entry, std::int64_t count) {
    strips[entry.matrix] += count;
    if (fits(strips)) return true;
    strips[entry.matrix] -= count;
    return false;
  };
  while (true) {
    double next = kWhole;
    for (const Entry& entry : gradual_)
      if (const std::int64_t count = strips[entry.matrix] - given[entry.matrix]; count < entry.strips)
        next = std::min(next, entry.share_of(count + 1));
    if (next == kWhole) break;
    for (const Entry& entry : gradual_) {
      const std::int64_t count = strips[entry.matrix] - given[entry.matrix];
      if (count < entry.strips && entry.share_of(count + 1) == next && !take(entry, 1)) return strips;
    }
  }
  for (const Entry& entry : last_)
    if (!take(entry, entry.strips)) break;
  return strips;
}

}  // namespace genai
