#include "engine/residency/host_lane.h"

#include <algorithm>
#include <chrono>

#include "engine/error.h"

namespace genai {
namespace {

constexpr std::size_t kAlignment = 256;
// Between two requests of a step passes less than this; between two steps sometimes more.
constexpr auto kSpinTime = std::chrono::milliseconds(20);
constexpr auto kNapTime = std::chrono::microseconds(50);
constexpr int kSpinsBetweenLooks = 256;  // at the clock and at stop_

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int32_t output_width(const MatmulOutput& output, Epilogue epilogue) {
  return is_gated(epilogue) ? output.matrix.rows / 2 : output.matrix.rows;
}

}  // namespace

HostLane::HostLane(Device& device, Device& host, ResidencyArena& arena, DevicePtr<std::uint64_t> count,
                   const HostLaneLimits& limits)
    : device_(device), host_(host), arena_(arena), limits_(limits), count_(count), host_stream_(host.create_stream()) {
  GENAI_EXPECT(limits.max_rows > 0 && limits.input_width > 0 && limits.result_width > 0, "a lane without work");
  const auto rows = static_cast<std::size_t>(limits.max_rows);
  const std::size_t input_offset = aligned(sizeof(HostExchange));
  const std::size_t results_offset =
      input_offset + aligned(rows * static_cast<std::size_t>(limits.input_width) * sizeof(float));
  const std::size_t bytes =
      results_offset + aligned(rows * static_cast<std::size_t>(limits.result_width) * sizeof(float));
  shared_ = arena.reserve(MemoryKind::exchange, bytes, Placement::host);
  shared_.commit(0, bytes);
  exchange_ = shared_.base().as<HostExchange>();
  input_ = shared_.base().byte_offset(static_cast<std::int64_t>(input_offset)).as<float>();
  results_ = shared_.base().byte_offset(static_cast<std::int64_t>(results_offset)).as<float>();
  scratch_.resize(kAlignment + host.kernels().scratch_bytes({.row_count = limits.max_rows,
                                                             .input_width = limits.input_width,
                                                             .head_count = 1,
                                                             .head_dim = 8,
                                                             .max_positions = 1}));
  thread_ = std::thread([this] { serve(); });
}

HostLane::~HostLane() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

template <class T>
DevicePtr<T> HostLane::on_host(DevicePtr<T> place) const {
  const std::byte* view = arena_.memory().host_view(DevicePtr<std::byte>(place.address()));
  GENAI_EXPECT(view != nullptr, "the host computes rows that it cannot read");
  return DevicePtr<T>(reinterpret_cast<std::uint64_t>(view));
}

void HostLane::keep_copy(DevicePtr<const float> place, std::vector<float> values) {
  copies_[place.address()] = std::move(values);
}

DevicePtr<const float> HostLane::copy_of(DevicePtr<const float> place) const {
  if (!place) return {};
  auto after = copies_.upper_bound(place.address());
  GENAI_EXPECT(after != copies_.begin(), "a vector without a copy for the host");
  const auto& [begin, values] = *--after;
  const std::uint64_t offset = (place.address() - begin) / sizeof(float);
  GENAI_EXPECT(offset < values.size(), "a vector without a copy for the host");
  return DevicePtr<const float>(reinterpret_cast<std::uint64_t>(values.data() + offset));
}

const HostLane::Product& HostLane::product_of(const void* key, const MatmulArgs& args) {
  const std::lock_guard lock(mutex_);
  const auto found = numbers_.find(key);
  if (found != numbers_.end()) return products_[static_cast<std::size_t>(found->second)];
  Product product{static_cast<std::int32_t>(products_.size()), args};
  MatmulArgs& host_args = product.host_args;
  host_args.input = on_host(input_);
  host_args.input_stride = args.outputs[0].matrix.cols;
  host_args.norm_weight = copy_of(args.norm_weight);
  host_args.epilogue = args.epilogue == Epilogue::add ? Epilogue::store : args.epilogue;
  const auto scratch = reinterpret_cast<std::uint64_t>(scratch_.data());
  host_args.scratch = DevicePtr<std::byte>((scratch + kAlignment - 1) / kAlignment * kAlignment);
  std::int32_t width = 0;
  for (int i = 0; i < args.output_count; ++i) {
    MatmulOutput& output = host_args.outputs[i];
    output.matrix.data = on_host(output.matrix.data);
    output.bias = copy_of(output.bias);
    output.out = on_host(results_) + std::int64_t{limits_.max_rows} * width;
    output.out_stride = output_width(output, args.epilogue);
    width += output.out_stride;
  }
  GENAI_EXPECT(width <= limits_.result_width && host_args.input_stride <= limits_.input_width, "a product too wide");
  numbers_[key] = product.number;
  return products_.emplace_back(product);
}

void HostLane::ask(Stream& stream, const void* key, const MatmulArgs& args) {
  GENAI_EXPECT(serves(args.row_count), "more rows than the host lane takes");
  const Product& product = product_of(key, args);
  asked_ = args;
  device_.kernels().ask_host(stream, {.input = args.input,
                                      .input_stride = args.input_stride,
                                      .row_count = args.row_count,
                                      .width = args.outputs[0].matrix.cols,
                                      .host_input = input_,
                                      .exchange = exchange_,
                                      .count = count_,
                                      .job = product.number});
}

void HostLane::take(Stream& stream) {
  TakeAnswerArgs answer{};
  answer.output_count = asked_.output_count;
  answer.row_count = asked_.row_count;
  answer.add = asked_.epilogue == Epilogue::add;
  answer.exchange = exchange_;
  answer.count = count_;
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

void HostLane::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

// False: there will be none.
bool HostLane::wait_for_request(std::uint64_t number) {
  HostExchange& exchange = *reinterpret_cast<HostExchange*>(on_host(exchange_).address());
  const auto is_asked = [&] { return std::atomic_ref(exchange.asked).load(std::memory_order_acquire) >= number; };
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    for (int spin = 0; spin < kSpinsBetweenLooks; ++spin)
      if (is_asked()) return true;
    if (stop_.load(std::memory_order_relaxed)) return false;
    if (std::chrono::steady_clock::now() - start > kSpinTime) std::this_thread::sleep_for(kNapTime);
  }
}

void HostLane::serve() {
  HostExchange& exchange = *reinterpret_cast<HostExchange*>(on_host(exchange_).address());
  for (std::uint64_t number = 1; wait_for_request(number); ++number) {
    try {
      compute(exchange.job, exchange.row_count);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    answered_count_.store(number, std::memory_order_relaxed);
    std::atomic_ref(exchange.answered).store(number, std::memory_order_release);
  }
}

void HostLane::compute(std::int32_t number, std::int32_t row_count) {
  MatmulArgs args;
  {
    const std::lock_guard lock(mutex_);
    args = products_.at(static_cast<std::size_t>(number)).host_args;
  }
  args.row_count = row_count;
  host_.kernels().matmul(*host_stream_, args);
  host_stream_->synchronize();
}

}  // namespace genai
