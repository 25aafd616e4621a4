// host_pointer.h - what an address of the host device points at: there, addresses of device memory are the process's
// own.
#pragma once
#include "engine/device/device_ptr.h"

namespace genai {

template <class T>
T* host(DevicePtr<T> pointer) {
  return reinterpret_cast<T*>(pointer.address());
}

}  // namespace genai
