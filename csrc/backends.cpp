// SPDX-License-Identifier: BSD-3-Clause
#include "backends.h"

#include <dlfcn.h>
#include <unistd.h>

namespace torchlms {

// A library of its own, since a program with PyTorch's CPU build has no libc10_cuda.so that it could link.
const std::string& load_cuda_backend() {
  static const std::string* const reason = [] {
    Dl_info own{};
    if (::dladdr(reinterpret_cast<const void*>(&load_cuda_backend), &own) == 0) {
      return new std::string("the folder of libtorchlms is unknown");
    }
    // "libtorchlms.so.0.1" -> "libtorchlms_cuda.so.0.1"
    std::string path = own.dli_fname;
    const size_t suffix = path.rfind(".so");
    if (suffix == std::string::npos) {
      return new std::string("linked into " + path);
    }
    path.insert(suffix, "_cuda");
    if (::access(path.c_str(), R_OK) != 0) {
      return new std::string("not built");
    }
    // Registers itself as it is loaded. Never unloaded: threads and tensors refer to it.
    return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) ? new std::string() : new std::string(::dlerror());
  }();
  return *reason;
}

} // namespace torchlms
