// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

#include "export.h"

namespace torchlms {

// How one face of the library, Python's or C++'s, makes autograd call it for each tensor that it saves.
//
// All calls are about the thread that makes them. Lives for the whole process.
class TORCHLMS_EXPORT HookFrontend {
 public:
  virtual ~HookFrontend() = default;

  // Throws, in words for the user, when this process's autograd does not ask this face.
  virtual void check() const = 0;
  // PyTorch allows hooks on this thread now.
  virtual bool may_push() const = 0;
  // Hooks on this thread, the user's own included.
  virtual size_t depth() const = 0;
  // Installs ours with `depth` layers, or all there are, below it.
  virtual void push(size_t depth) = 0;
  // Takes out the layer that push() made, wherever it lies; others stay in their order.
  virtual void remove() = 0;
};

// The face of this process: the one that registered last. Null before.
TORCHLMS_EXPORT void set_hook_frontend(HookFrontend* frontend);
TORCHLMS_EXPORT HookFrontend* hook_frontend();

} // namespace torchlms
