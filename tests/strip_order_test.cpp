// The order of strips against a list of all of them, sorted.
#include "engine/residency/strip_order.h"

#include <algorithm>
#include <random>

#include "tests/catch.h"

namespace genai {
namespace {

struct Matrix {
  std::int64_t strips;
  std::int64_t strip_bytes;
  double scale;
  bool is_last;
};

struct Step {
  double share;
  std::size_t matrix;
  std::int64_t strips;
};

std::vector<Step> sorted_steps(const std::vector<Matrix>& matrices) {
  std::vector<Step> steps;
  for (std::size_t index = 0; index < matrices.size(); ++index) {
    const Matrix& matrix = matrices[index];
    if (matrix.is_last) steps.push_back({1e9, index, matrix.strips});
    for (std::int64_t strip = 1; strip <= matrix.strips && !matrix.is_last; ++strip)
      steps.push_back(
          {matrix.scale * static_cast<double>(strip) / static_cast<double>(matrix.strips), index, std::int64_t{1}});
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.share < b.share; });
  return steps;
}

}  // namespace

TEST_CASE("the longest prefix is that of a sorted list of all strips, whatever fits", "[strip_order]") {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<Matrix> matrices;
    std::vector<std::int64_t> given;
    StripOrder order;
    std::int64_t total_bytes = 0;
    for (std::size_t index = 0; index < 1 + random() % 9; ++index) {
      // Many equal ones, as in a model: then many shares are equal.
      const Matrix matrix{std::int64_t{1} << random() % 7, static_cast<std::int64_t>(1 + random() % 3),
                          random() % 3 == 0 ? 0.8 : 1.0, random() % 6 == 0};
      matrix.is_last ? order.add_last(index, matrix.strips) : order.add(index, matrix.strips, matrix.scale);
      given.push_back(random() % 4 == 0 ? 3 : 0);
      total_bytes += (matrix.strips + given.back()) * matrix.strip_bytes;
      matrices.push_back(matrix);
    }
    const auto bytes_of = [&](const std::vector<std::int64_t>& strips) {
      std::int64_t bytes = 0;
      for (std::size_t index = 0; index < strips.size(); ++index) bytes += strips[index] * matrices[index].strip_bytes;
      return bytes;
    };
    const std::vector<Step> steps = sorted_steps(matrices);
    for (std::int64_t limit = bytes_of(given); limit <= total_bytes; ++limit) {
      std::vector<std::int64_t> expected = given;
      for (const Step& step : steps) {
        expected[step.matrix] += step.strips;
        if (bytes_of(expected) <= limit) continue;
        expected[step.matrix] -= step.strips;
        break;
      }
      const auto fits = [&](const std::vector<std::int64_t>& strips) { return bytes_of(strips) <= limit; };
      REQUIRE(order.longest_prefix(given, fits) == expected);
    }
  }
}

}  // namespace genai
