// tensor_file.h - a model file as a table of named tensors, whatever its format. The file owns the bytes; everything
// handed out points into it and dies with it. Reading is safe from several threads; opening and closing is one
// thread's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dtype.h"
#include "engine/error.h"

namespace genai {

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;          // meaningless where not `readable`
  bool readable = false;             // false: a type of the format that this build cannot decode
  std::string type_name;             // as the format spells it, also where not readable: "Q4_K", "IQ4_NL"
  std::uint32_t type_number = 0;     // as the format counts it
  std::vector<std::uint64_t> shape;  // shape[0] is contiguous (K), then rows; 1 to 4 dimensions, none of them zero
  const std::byte* data = nullptr;   // not necessarily aligned for the element type
  std::uint64_t bytes = 0;           // all of them inside the file
  std::string file;                  // the part that holds the bytes
  std::uint64_t file_offset = 0;     // of `data` in that part
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  // The path it was opened with.
  virtual const std::string& path() const = 0;
  // In file order, those of unreadable types included.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // Null if the file has no such tensor. Throws ModelFileError if it has one of a type that this build cannot read, so
  // such a tensor is an error only for a model that needs it.
  virtual const TensorInfo* find_tensor(std::string_view name) const = 0;
  // `count` bytes of the tensor from `begin` will be used now: maps their pages in one call. Advice.
  virtual void populate_pages(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) const = 0;
  // They have been used: takes their whole pages out of this process's memory. Reading them again stays correct and
  // costs a read of the file.
  virtual void drop_pages(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) const = 0;

  // Throws ModelFileError if there is none.
  const TensorInfo& require_tensor(std::string_view name) const {
    const TensorInfo* tensor = find_tensor(name);
    if (tensor == nullptr)
      throw ModelFileError(path(), "tensor '" + std::string(name) + "' is missing",
                           "the file is incomplete or of another architecture than it says; convert it again");
    return *tensor;
  }
};

}  // namespace genai
