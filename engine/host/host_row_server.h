// host_row_server.h - threads of a pool that compute rows of products as requests for them arrive in words of memory
// (exchange_words.h), and put each result into a word of its own. Nobody calls them, and they wait for nobody:
// a thread that comes late to a request finds its units taken, or a newer request, and goes on with that.
//
// Invariants
//   S1 One request is open at a time: whoever asks has all results before it asks the next.
//   S2 Every unit of a request is computed by the one thread that took it, and its results are stored also where the
//      computation failed: whoever asks never waits in vain. The failure is thrown by rethrow_failure(), and results
//      until then are not to be trusted.
//   S3 Products are known before they are asked for, and stay where they are.
//
// Each thread has a share of each product's units, always the same ones, and helps others once its own are taken. While
// it waits it fetches the first of its rows that come next into its cache: requests come in the same order step after
// step. Without requests for a while the pool is left to others, and looked after now and then.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/device/host_cores.h"
#include "engine/host/math.h"
#include "engine/host/request_units.h"
#include "engine/host/thread_pool.h"

namespace genai {

class HostRowServer final : public RowServer {
 public:
  HostRowServer(ThreadPool& pool, const HostMath& math, const ExchangeWord* request, const RowServerLimits& limits);
  ~HostRowServer() override;
  HostRowServer(const HostRowServer&) = delete;
  HostRowServer& operator=(const HostRowServer&) = delete;

  static std::uint64_t ahead_bytes(int thread_count);

  std::int32_t add(const ServedProduct& product) override;
  std::uint32_t last_request() const override;
  void rethrow_failure() override;

 private:
  struct Request {
    std::uint32_t number;
    std::int32_t job;
    std::int32_t row_count;
  };
  struct Product {
    ServedProduct served;
    bool quantized_input = false;  // no matrix is of a float type
    bool has_quantized = false;
  };
  struct Worker;

  void serve();
  void work(Worker& worker);
  std::optional<Request> next_request(Worker& worker);
  void answer(Worker& worker, const Request& request);
  // False where the request is no longer the open one.
  bool read_input(Worker& worker, const Product& product, const Request& request);
  bool read_words(const ExchangeWord* from, std::byte* to, std::int64_t count, std::uint32_t number) const;
  void compute(Worker& worker, const Product& product, const Request& request, std::int64_t begin, std::int64_t end);
  bool wants_turned(const Request& request) const;
  bool is_open(std::uint32_t number) const;

  ThreadPool& pool_;
  const HostMath& math_;
  const ExchangeWord* request_;
  const RowServerLimits limits_;
  const std::unique_ptr<Product[]> products_;
  std::int32_t product_count_ = 0;
  RequestUnits units_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> is_leaving_{false};  // threads leave the pool once they have nothing to do
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;  // last: everything above is there before it starts
};

}  // namespace genai
