// strip_order.h - the one order in which strips of all matrices come into device memory, without a list of them: strip
// s of a matrix comes in at the share s / strips, so that every prefix of the order holds about the same share of every
// matrix; equal shares come in the order of the matrices. A model of 40 GB has a million strips and six hundred
// matrices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace genai {

class StripOrder {
 public:
  // Matrices are added in their order, each once. `scale`: the share at which the last strip is in.
  void add(std::size_t matrix, std::int64_t strips, double scale = 1.0) { gradual_.push_back({matrix, strips, scale}); }
  // Comes in behind all others, and whole.
  void add_last(std::size_t matrix, std::int64_t strips) { last_.push_back({matrix, strips, 1.0}); }

  // Strips by matrix: those that are in already, which are given, and the longest prefix of the order with which
  // `fits` is true. REQUIRES: `fits` is true of the given ones, and once false stays so for more.
  using Strips = std::vector<std::int64_t>;
  Strips longest_prefix(Strips given, const std::function<bool(const Strips&)>& fits) const;

 private:
  struct Entry {
    std::size_t matrix;
    std::int64_t strips;
    double scale;
    double share_of(std::int64_t strip) const {
      return scale * static_cast<double>(strip) / static_cast<double>(strips);
    }
    std::int64_t count_at(double share) const;
  };
  Strips at_share(Strips given, double share) const;

  std::vector<Entry> gradual_;
  std::vector<Entry> last_;
};

}  // namespace genai
