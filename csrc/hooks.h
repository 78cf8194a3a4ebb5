// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "export.h"
#include "hook_frontend.h"
#include "session.h"

namespace torchlms {

// What torchlms hangs into PyTorch on each thread: an observer of dispatched ops, and default hooks
// for saved tensors. All state is thread-local; a scope entered on one thread covers that thread only.

// Opens a scope on this thread, or joins the one that is open with the same session (counted). Throws
// c10::ValueError when one is open with another session, and what Session::open_tape and
// HookFrontend::check throw.
TORCHLMS_EXPORT void enter_scope(const std::shared_ptr<Session>& session);
// Leaves it; the last leave ends it. Without a matching enter on this thread: no effect.
TORCHLMS_EXPORT void exit_scope(const std::shared_ptr<Session>& session);

// Ends this thread's scope, however often it was entered. For a forked child, which has a copy of the
// scope that was open at the fork and none of the threads that serve it.
TORCHLMS_EXPORT void abandon_scope();

// Between these the thread's scope sees nothing and no hooks are installed. They nest.
TORCHLMS_EXPORT void enter_disabled();
TORCHLMS_EXPORT void exit_disabled();

// The tape of this thread's scope, or null.
TORCHLMS_EXPORT Tape* current_tape();

// What a frontend's pack hook does: a share in the tensor's storage, or null outside of scopes and for a
// kind of tensor that the frontend has to keep itself (counted as not planned). is_plain: no subclass.
TORCHLMS_EXPORT std::unique_ptr<Packed> pack_for_current_scope(
    const at::Tensor& tensor, bool is_plain, bool keep);

// For the autograd node that runs on this thread: what an unpack may hand to it.
TORCHLMS_EXPORT CopyOut copy_out_for_current_node();

} // namespace torchlms
