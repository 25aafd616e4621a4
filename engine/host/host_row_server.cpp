#include "engine/host/host_row_server.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "engine/error.h"
#include "engine/exact_math.h"
#include "engine/host/exchange_access.h"
#include "engine/host/host_pointer.h"
#include "engine/host/matmul_units.h"

namespace genai {
namespace {

// Between two requests of a step passes less than this; between two steps sometimes more.
constexpr auto kSpinTime = std::chrono::milliseconds(20);
constexpr auto kNapTime = std::chrono::microseconds(50);
constexpr int kSpinsBetweenLooks = 256;  // at the clock and at flags
// Fetched ahead by a thread that waits: what its part of a second-level cache holds beside the rows in use.
constexpr std::int64_t kAheadBytes = std::int64_t{512} << 10;
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kAheadWords = 64 * kLineWords;  // of a request, while it is read
constexpr int kLinesAtOnce = 8;
// Results of so many units at once wait in the thread's own memory for their words.
constexpr std::int64_t kPieceUnits = 8;
constexpr std::int64_t kPieceRows = kPieceUnits * kMostUnitStrips * kStripRows;

static_assert(sizeof(ActivationTile) == 4 * kTileWords);
static_assert(offsetof(ActivationTile, scale) == 4 * kScaleWord);
static_assert(offsetof(ActivationTile, sum) == 4 * kSumWord);
static_assert(offsetof(ActivationTile, half_sum) == 4 * kHalfSumWord);

struct ByteRange {
  const std::byte* begin;
  const std::byte* end;
};

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Memory of one thread's own, in parts on cache lines.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t bytes) : memory_(static_cast<std::size_t>(bytes + kLineBytes)) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    next_ = memory_.data() + (kLineBytes - address % kLineBytes) % kLineBytes;
  }
  std::byte* take(std::int64_t bytes) {
    std::byte* const part = next_;
    next_ += round_up(bytes, kLineBytes);
    return part;
  }

 private:
  std::vector<std::byte> memory_;
  std::byte* next_;
};

}  // namespace

struct alignas(64) HostRowServer::Worker {
  Worker(const HostRowServer& server, int thread_index)
      : index(thread_index),
        tile_stride_bytes(input_words(server.limits_.input_width, true) * 4),
        float_stride_bytes(server.limits_.float_input ? input_words(server.limits_.input_width, false) * 4 : 0),
        turned_stride_bytes(server.math_.turn_row ? turned_row_bytes(server.limits_.input_width) : 0),
        memory(server.limits_.max_rows * (tile_stride_bytes + float_stride_bytes + kPieceRows * 4) +
               std::min(server.limits_.max_rows, kMostTurnedRows) * turned_stride_bytes +
               matmul_workspace_bytes(server.limits_.input_width) + 4 * kLineBytes),
        tiles(memory.take(server.limits_.max_rows * tile_stride_bytes)),
        floats(memory.take(server.limits_.max_rows * float_stride_bytes)),
        turned(reinterpret_cast<TurnedTile*>(
            memory.take(std::min(server.limits_.max_rows, kMostTurnedRows) * turned_stride_bytes))),
        outputs(reinterpret_cast<float*>(memory.take(server.limits_.max_rows * kPieceRows * 4))),
        workspace(memory.take(matmul_workspace_bytes(server.limits_.input_width))),
        followers(static_cast<std::size_t>(server.limits_.max_products), -1) {}

  // Whatever comes next begins anew with what comes behind `job`.
  void look_ahead(std::int32_t job) {
    ahead_job = job;
    ahead_bytes = 0;
    ahead_next = ahead_count = 0;
  }
  // Fetches some lines of the thread's own rows that come next; false where there are enough.
  bool fetch_ahead(const HostRowServer& server);

  const int index;
  std::uint32_t seen = 0;  // the last request; none of its units are left
  std::int64_t tile_stride_bytes;
  std::int64_t float_stride_bytes;
  std::int64_t turned_stride_bytes;
  AlignedBytes memory;
  std::byte* tiles;    // of each row of the request
  std::byte* floats;   // likewise
  TurnedTile* turned;  // of all rows, where matmul wants that
  float* outputs;      // (max_rows, kPieceRows)
  std::byte* workspace;

  std::vector<std::int32_t> followers;  // by job: what was asked for behind it the last time; -1: not known
  std::int32_t last_job = -1;
  std::int32_t last_row_count = 1;  // as many are likely to come next
  std::int32_t ahead_job = -1;      // whose own rows are fetched, or were last
  std::int64_t ahead_bytes = 0;
  std::array<ByteRange, MatmulArgs::kMaxOutputs> ahead{};  // what is left of them
  int ahead_next = 0;
  int ahead_count = 0;
};

bool HostRowServer::Worker::fetch_ahead(const HostRowServer& server) {
  if (ahead_bytes >= kAheadBytes) return false;
  if (ahead_next == ahead_count) {
    if (ahead_job >= 0) ahead_job = followers[static_cast<std::size_t>(ahead_job)];
    if (ahead_job < 0) return false;
    ahead_next = ahead_count = 0;
    const Product& product = server.products_[static_cast<std::size_t>(ahead_job)];
    const std::int64_t units = unit_count(product.served.args, last_row_count);
    const IndexRange own = static_range(units, index, static_cast<int>(server.workers_.size()));
    for_each_strip_range(product.served.args, last_row_count, own.begin, own.end,
                         [&](int output, std::int64_t first_strip, std::int64_t strip_count) {
                           const MatrixView& matrix = product.served.args.outputs[output].matrix;
                           const std::int64_t one_strip = strip_bytes(matrix.dtype, matrix.cols);
                           const std::byte* const begin = host(matrix.data) + first_strip * one_strip;
                           ahead[static_cast<std::size_t>(ahead_count++)] = {begin, begin + strip_count * one_strip};
                         });
  }
  ahead_bytes += kLinesAtOnce * kLineBytes;  // also without rows: there may be none in any product
  if (ahead_next == ahead_count) return true;
  ByteRange& range = ahead[static_cast<std::size_t>(ahead_next)];
  for (int line = 0; line < kLinesAtOnce && range.begin < range.end; ++line, range.begin += kLineBytes)
    __builtin_prefetch(range.begin, 0, 2);
  if (range.begin >= range.end) ++ahead_next;
  return true;
}

HostRowServer::HostRowServer(ThreadPool& pool, const HostMath& math, const ExchangeWord* request,
                             const RowServerLimits& limits)
    : pool_(pool),
      math_(math),
      request_(request),
      limits_(limits),
      products_(std::make_unique<Product[]>(static_cast<std::size_t>(limits.max_products))),
      units_(pool.thread_count()) {
  GENAI_EXPECT(limits.max_rows > 0 && limits.input_width > 0 && limits.max_products > 0, "a server without work");
  for (int thread = 0; thread < pool.thread_count(); ++thread)
    workers_.push_back(std::make_unique<Worker>(*this, thread));
  thread_ = std::thread([this] { serve(); });
}

HostRowServer::~HostRowServer() {
  is_stopping_.store(true, std::memory_order_relaxed);
  thread_.join();
}

std::uint64_t HostRowServer::ahead_bytes(int thread_count) {
  return static_cast<std::uint64_t>(thread_count * kAheadBytes);
}

std::uint32_t HostRowServer::last_request() const { return request_of(load_word(*request_)); }

std::int32_t HostRowServer::add(const ServedProduct& served) {
  expect_product(served.args);
  GENAI_EXPECT(product_count_ < limits_.max_products, "more products than were announced");
  GENAI_EXPECT(served.args.outputs[0].matrix.cols <= limits_.input_width, "a product too wide");
  Product& product = products_[static_cast<std::size_t>(product_count_)];
  product.served = served;
  product.quantized_input = takes_quantized_rows(served.args);
  for (int i = 0; i < served.args.output_count; ++i)
    product.has_quantized = product.has_quantized || !is_float(served.args.outputs[i].matrix.dtype);
  GENAI_EXPECT(product.quantized_input || limits_.float_input, "a matrix of a float type that was not announced");
  return product_count_++;
}

void HostRowServer::rethrow_failure() {
  const std::lock_guard lock(failure_mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

bool HostRowServer::wants_turned(const Request& request) const {
  return math_.turn_row != nullptr && is_turned(request.row_count);
}

bool HostRowServer::is_open(std::uint32_t number) const { return last_request() == number; }

void HostRowServer::serve() {
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    if (is_open(workers_.front()->seen)) {
      std::this_thread::sleep_for(kNapTime);
      continue;
    }
    is_leaving_.store(false, std::memory_order_relaxed);
    pool_.parallel([this](int thread_index, int) { work(*workers_[static_cast<std::size_t>(thread_index)]); });
  }
}

void HostRowServer::work(Worker& worker) {
  while (const std::optional<Request> request = next_request(worker)) {
    answer(worker, *request);
    worker.seen = request->number;
    worker.last_job = request->job;
    worker.last_row_count = request->row_count;
    worker.look_ahead(request->job);
  }
}

// Nothing: the thread leaves the pool. Once one does, all do, so that none is missing from later requests.
std::optional<HostRowServer::Request> HostRowServer::next_request(Worker& worker) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    for (int spin = 0; spin < kSpinsBetweenLooks; ++spin) {
      const ExchangeWord header = load_word(*request_);
      if (request_of(header) != worker.seen)
        return Request{request_of(header), job_of(data_of(header)), row_count_of(data_of(header))};
      if (!worker.fetch_ahead(*this)) pause_core();
    }
    if (is_leaving_.load(std::memory_order_relaxed) || is_stopping_.load(std::memory_order_relaxed)) return {};
    if (std::chrono::steady_clock::now() - start > kSpinTime) is_leaving_.store(true, std::memory_order_relaxed);
    std::this_thread::yield();  // whoever asks may be queued behind this thread
  }
}

void HostRowServer::answer(Worker& worker, const Request& request) {
  const Product& product = products_[static_cast<std::size_t>(request.job)];
  if (worker.last_job >= 0) worker.followers[static_cast<std::size_t>(worker.last_job)] = request.job;
  if (!read_input(worker, product, request)) return;
  units_.take(request.number, unit_count(product.served.args, request.row_count), worker.index,
              [&](std::int64_t begin, std::int64_t end) { compute(worker, product, request, begin, end); });
}

bool HostRowServer::read_input(Worker& worker, const Product& product, const Request& request) {
  const std::int32_t cols = product.served.args.outputs[0].matrix.cols;
  const std::int64_t words = input_words(cols, product.quantized_input);
  for (std::int32_t m = 0; m < request.row_count; ++m) {
    const ExchangeWord* const row = request_ + kHeaderWords + m * words;
    std::byte* const tiles = worker.tiles + m * worker.tile_stride_bytes;
    std::byte* const floats = worker.floats + m * worker.float_stride_bytes;
    if (!read_words(row, product.quantized_input ? tiles : floats, words, request.number)) return false;
    if (!product.quantized_input && product.has_quantized)
      math_.quantize_row(reinterpret_cast<const float*>(floats), cols, reinterpret_cast<ActivationTile*>(tiles));
    if (product.has_quantized && wants_turned(request))
      math_.turn_row(reinterpret_cast<const ActivationTile*>(tiles), cols, worker.turned + m, request.row_count);
  }
  return true;
}

bool HostRowServer::read_words(const ExchangeWord* from, std::byte* to, std::int64_t count,
                               std::uint32_t number) const {
  static_assert(kTileWords % kLineWords == 0 && kTileWidth % kLineWords == 0 && kHeaderWords % kLineWords == 0);
  for (std::int64_t i = 0; i < count; i += kLineWords) {
    // The device has written to memory or to a cache far away, and all threads read the same lines.
    __builtin_prefetch(from + i + kAheadWords, 0, 2);
    while (!load_line(from + i, number, to + 4 * i)) {
      if (!is_open(number)) return false;
      pause_core();
    }
  }
  return true;
}

void HostRowServer::compute(Worker& worker, const Product& product, const Request& request, std::int64_t begin,
                            std::int64_t end) {
  const MatmulArgs& args = product.served.args;
  const auto compute_strips = [&](int index, std::int64_t first_strip, std::int64_t strips) {
    const MatmulOutput& output = args.outputs[index];
    const bool floats = is_float(output.matrix.dtype);
    const std::int64_t first_row = first_strip * kStripRows;
    const std::int64_t rows = std::min(strips * kStripRows, output.matrix.rows - first_row);
    const std::int64_t rows_a_result = is_gated(args.epilogue) ? 2 : 1;
    const std::int64_t first_result = first_row / rows_a_result;
    const std::int64_t results = rows / rows_a_result;
    const std::byte* const data = host(output.matrix.data);
    try {
      math_.matmul({.matrix = {.data = data + first_strip * strip_bytes(output.matrix.dtype, output.matrix.cols),
                               .dtype = output.matrix.dtype,
                               .rows = static_cast<std::int32_t>(rows),
                               .cols = output.matrix.cols},
                    .input = floats ? worker.floats : worker.tiles,
                    .input_stride_bytes = floats ? worker.float_stride_bytes : worker.tile_stride_bytes,
                    .row_count = request.row_count,
                    .turned = wants_turned(request) ? worker.turned : nullptr,
                    .bias = output.bias ? host(output.bias) + first_row : nullptr,
                    .out = worker.outputs,
                    .out_stride = kPieceRows,
                    .epilogue = args.epilogue,
                    .soft_cap = args.soft_cap},
                   0, strips, worker.workspace);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    const std::int64_t width = output_width(output, args.epilogue);
    for (std::int32_t m = 0; m < request.row_count; ++m)
      store_floats(product.served.results[index] + m * width + first_result, worker.outputs + m * kPieceRows, results,
                   request.number);
  };
  for (std::int64_t piece = begin; piece < end; piece += kPieceUnits)
    for_each_strip_range(args, request.row_count, piece, std::min(end, piece + kPieceUnits), compute_strips);
}

}  // namespace genai
