#include "engine/residency/host_lane.h"

#include <utility>

#include "engine/error.h"
#include "engine/exchange_words.h"

namespace genai {
namespace {

constexpr std::int64_t kAlignment = 256;

static_assert(HostLane::kMaxRows <= kMaxRequestRows);

}  // namespace

HostLane::HostLane(Device& device, Device& host, ResidencyArena& arena, DevicePtr<std::uint32_t> finished,
                   const HostLaneLimits& limits)
    : device_(device), arena_(arena), limits_(limits), finished_(finished) {
  GENAI_EXPECT(limits.max_rows > 0 && limits.input_width > 0 && limits.result_width > 0, "a lane without work");
  constexpr std::int64_t kWordBytes = sizeof(ExchangeWord);
  const std::int64_t request_words =
      kHeaderWords + limits.max_rows * input_words(limits.input_width, !limits.float_input);
  const std::int64_t result_words = std::int64_t{limits.max_rows} * limits.result_width;
  const std::int64_t results_offset = round_up(request_words * kWordBytes, kAlignment);
  const auto bytes = static_cast<std::size_t>(results_offset + result_words * kWordBytes);
  shared_ = arena.reserve(MemoryKind::exchange, bytes, Placement::host);
  shared_.commit(0, bytes);
  request_ = shared_.base().as<ExchangeWord>();
  results_ = shared_.base().byte_offset(results_offset).as<ExchangeWord>();
  const std::unique_ptr<Stream> stream = device.create_stream();
  stream->fill_zero(finished.as<std::byte>(), sizeof(std::uint32_t));
  stream->synchronize();
  server_ = host_cores_of(host).serve_rows(on_host(request_), {.max_rows = limits.max_rows,
                                                               .input_width = limits.input_width,
                                                               .max_products = limits.max_products,
                                                               .float_input = limits.float_input});
}

template <class T>
T* HostLane::on_host(DevicePtr<T> place) const {
  std::byte* view = arena_.memory().host_view(DevicePtr<std::byte>(place.address()));
  GENAI_EXPECT(view != nullptr, "the host computes rows that it cannot read");
  return reinterpret_cast<T*>(view);
}

void HostLane::keep_copy(DevicePtr<const float> place, std::vector<float> values) {
  copies_[place.address()] = std::move(values);
}

DevicePtr<const float> HostLane::copy_of(DevicePtr<const float> place) const {
  if (!place) return {};
  auto after = copies_.upper_bound(place.address());
  GENAI_EXPECT(after != copies_.begin(), "a bias without a copy for the host");
  const auto& [begin, values] = *--after;
  const std::uint64_t offset = (place.address() - begin) / sizeof(float);
  GENAI_EXPECT(offset < values.size(), "a bias without a copy for the host");
  return DevicePtr<const float>(reinterpret_cast<std::uint64_t>(values.data() + offset));
}

std::int32_t HostLane::number_of(const void* key, const MatmulArgs& args) {
  const auto found = numbers_.find(key);
  if (found != numbers_.end()) return found->second;
  ServedProduct product{.args = args, .results = {}};
  if (args.epilogue == Epilogue::add) product.args.epilogue = Epilogue::store;
  std::int32_t width = 0;
  for (int i = 0; i < args.output_count; ++i) {
    MatmulOutput& output = product.args.outputs[i];
    output.matrix.data = DevicePtr<const std::byte>(reinterpret_cast<std::uint64_t>(on_host(output.matrix.data)));
    output.bias = copy_of(output.bias);
    product.results[i] = on_host(results_) + std::int64_t{limits_.max_rows} * width;
    width += output_width(output, args.epilogue);
  }
  GENAI_EXPECT(width <= limits_.result_width, "a product too wide");
  return numbers_[key] = server_->add(product);
}

void HostLane::ask(Stream& stream, const void* key, const MatmulArgs& args) {
  GENAI_EXPECT(serves(args.row_count), "more rows than the host lane takes");
  const std::int32_t number = number_of(key, args);
  asked_ = args;
  device_.kernels().ask_host(stream, {.input = args.input,
                                      .input_stride = args.input_stride,
                                      .row_count = args.row_count,
                                      .width = args.outputs[0].matrix.cols,
                                      .norm_weight = args.norm_weight,
                                      .norm_epsilon = args.norm_epsilon,
                                      .quantize = takes_quantized_rows(args),
                                      .request = request_,
                                      .finished = finished_,
                                      .number = ++pass_requests_,
                                      .job = number});
}

void HostLane::take(Stream& stream) {
  TakeAnswerArgs answer{};
  answer.output_count = asked_.output_count;
  answer.row_count = asked_.row_count;
  answer.add = asked_.epilogue == Epilogue::add;
  answer.finished = finished_;
  answer.number = pass_requests_;
  std::int32_t width = 0;
  for (int i = 0; i < asked_.output_count; ++i) {
    const std::int32_t own_width = output_width(asked_.outputs[i], asked_.epilogue);
    answer.outputs[i] = {.result = results_ + std::int64_t{limits_.max_rows} * width,
                         .width = own_width,
                         .out = asked_.outputs[i].out,
                         .out_stride = asked_.outputs[i].out_stride};
    width += own_width;
  }
  device_.kernels().take_answer(stream, answer);
}

void HostLane::end_pass(Stream& stream) {
  if (pass_requests_ == 0) return;
  device_.kernels().finish_requests(stream, {.finished = finished_, .count = std::exchange(pass_requests_, 0)});
}

}  // namespace genai
