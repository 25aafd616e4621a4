// device_ptr.h - an address in a device's range. The engine may compute with it, pass it on and compare it, but only a
// backend may turn it into a pointer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace genai {

template <class T>
class DevicePtr {
 public:
  constexpr DevicePtr() = default;
  constexpr explicit DevicePtr(std::uint64_t address) : address_(address) {}
  // T* converts to const T*, as for pointers.
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T> && !std::is_same_v<U, T>>>
  constexpr DevicePtr(DevicePtr<U> other) : address_(other.address()) {}

  constexpr std::uint64_t address() const { return address_; }
  constexpr explicit operator bool() const { return address_ != 0; }
  template <class U>
  constexpr DevicePtr<U> as() const {
    return DevicePtr<U>(address_);
  }
  constexpr DevicePtr operator+(std::int64_t count) const { return DevicePtr(address_ + count * sizeof(T)); }
  constexpr DevicePtr byte_offset(std::int64_t bytes) const { return DevicePtr(address_ + bytes); }
  friend constexpr bool operator==(DevicePtr a, DevicePtr b) { return a.address_ == b.address_; }

 private:
  std::uint64_t address_ = 0;
};

}  // namespace genai
