// host_cores.h - what a host device can do besides being a device: have its cores compute rows for another one, without
// a call for each request. Requests and results are words of memory (engine/exchange_words.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

#include "engine/device/device.h"
#include "engine/error.h"

namespace genai {

struct ServedProduct {
  MatmulArgs args;  // matrices, biases and epilogue alone, at addresses of this process; not Epilogue::add
  ExchangeWord* results[MatmulArgs::kMaxOutputs];  // (M, outputs of a row)
};

// What a request for this product carries: quantised rows, or floats where some matrix is of a float type.
inline bool takes_quantized_rows(const MatmulArgs& args) {
  return std::none_of(args.outputs, args.outputs + args.output_count,
                      [](const MatmulOutput& output) { return is_float(output.matrix.dtype); });
}

struct RowServerLimits {
  std::int32_t max_rows = 1;      // of a request
  std::int32_t input_width = 0;   // of the widest product
  std::int32_t max_products = 0;  // that there will be
  bool float_input = false;       // some product has a matrix of a float type
};

// Cores that look for requests until it is destroyed. One thread calls.
class RowServer {
 public:
  virtual ~RowServer() = default;
  // Returns the number to ask for it. Throws Error where it is no product.
  virtual std::int32_t add(const ServedProduct& product) = 0;
  // Of the last request that was asked, modulo 2^32; 0: none.
  virtual std::uint32_t last_request() const = 0;
  // Throws what a product has thrown; its results were stored all the same.
  virtual void rethrow_failure() = 0;
};

class HostCores {
 public:
  virtual ~HostCores() = default;
  // `request`: header and rows. It and the device outlive the server.
  virtual std::unique_ptr<RowServer> serve_rows(const ExchangeWord* request, const RowServerLimits& limits) = 0;
  // Bytes of rows that the cores fetch into their caches while nothing is asked of them.
  virtual std::uint64_t ahead_bytes() const = 0;
  // Bytes of rows that stay in their caches from pass to pass, about; 0: not known.
  virtual std::uint64_t cache_bytes() const = 0;
};

// REQUIRES: a host device.
inline HostCores& host_cores_of(Device& device) {
  auto* const cores = dynamic_cast<HostCores*>(&device);
  GENAI_EXPECT(cores != nullptr, "host cores are those of a host device");
  return *cores;
}

}  // namespace genai
