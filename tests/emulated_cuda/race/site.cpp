// SPDX-License-Identifier: BSD-3-Clause
#include "site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace emulated_cuda::race {
namespace {

constexpr int kMostFrames = 48;
constexpr int kMostShown = 14;
constexpr int kMostPythonLines = 10;

// "library: function", empty for frames that say nothing.
std::string frame_text(void* frame) {
  Dl_info info;
  if (dladdr(frame, &info) == 0 || info.dli_fname == nullptr)
    return "";
  const char* slash = std::strrchr(info.dli_fname, '/');
  const std::string library = slash == nullptr ? info.dli_fname : slash + 1;
  if (library.starts_with("libemulated_") || library.starts_with("python") ||
      library.starts_with("libpython"))
    return "";
  if (info.dli_sname == nullptr) {
    char offset[32];
    std::snprintf(
        offset, sizeof offset, "+0x%zx", static_cast<char*>(frame) - static_cast<char*>(info.dli_fbase));
    return library + offset;
  }
  int status = 0;
  char* readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : info.dli_sname;
  std::free(readable);
  // PyTorch's wrappers around every call would hide the one line that matters.
  for (const char* noise :
       {"wrap_kernel_functor", "c10::impl::", "c10::Dispatcher", "::redispatch", "make_boxed_"})
    if (name.find(noise) != std::string::npos)
      return "";
  return library + ": " + name.substr(0, 160);
}

} // namespace

// Needs no GIL: the thread's own frames stand still while it is in here.
std::string python_stack() {
  using Dump = void (*)(int, void*);
  using State = void* (*)();
  static const auto dump = reinterpret_cast<Dump>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  static const auto state = reinterpret_cast<State>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  void* thread = dump == nullptr || state == nullptr ? nullptr : state();
  if (thread == nullptr)
    return "";
  const int file = memfd_create("emulated_cuda", 0);
  dump(file, thread);
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_CUR)), '\0');
  const bool read_all = pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  close(file);
  if (!read_all)
    return "";
  size_t end = 0;
  for (int line = 0; line < kMostPythonLines && end != std::string::npos; line++)
    end = text.find('\n', end == 0 ? 0 : end + 1);
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

std::shared_ptr<const Site> site_here(std::string work, uint64_t stream) {
  static const char* asked = std::getenv("EMULATED_CUDA_PYTHON_SITES");
  auto site = std::make_shared<Site>();
  site->work = std::move(work);
  site->stream = stream;
  site->frames.resize(kMostFrames);
  site->frames.resize(static_cast<size_t>(backtrace(site->frames.data(), kMostFrames)));
  if (asked != nullptr && *asked == '1')
    site->python = python_stack();
  return site;
}

std::string describe(const Site& site) {
  std::string text;
  int shown = 0;
  for (void* frame : site.frames) {
    const std::string line = frame_text(frame);
    if (line.empty() || shown++ >= kMostShown)
      continue;
    text += "      " + line + "\n";
  }
  return text + site.python;
}

} // namespace emulated_cuda::race
