// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/SafePyObject.h>
#include <memory>

#include "session.h"

namespace torchlms {

// What torchlms hangs into PyTorch on each thread: an observer of dispatched ops, and default hooks
// for saved tensors. All state is thread-local; a scope entered on one thread covers that thread only.

// The pair of Python callables that become PyTorch's default saved-tensor hooks inside scopes. Called
// once, at import.
void set_default_hooks(c10::SafePyObject pack, c10::SafePyObject unpack);

// Opens a scope on this thread, or joins the one that is open with the same session (counted). Throws
// c10::ValueError when one is open with another session, and what Session::open_tape throws.
void enter_scope(const std::shared_ptr<Session>& session);
// Leaves it; the last leave ends it. Without a matching enter on this thread: no effect.
void exit_scope(const std::shared_ptr<Session>& session);

// Ends this thread's scope, however often it was entered. For a forked child, which has a copy of the
// scope that was open at the fork and none of the threads that serve it.
void abandon_scope();

// Between these the thread's scope sees nothing and no hooks are installed. They nest.
void enter_disabled();
void exit_disabled();

// The tape of this thread's scope, or null.
Tape* current_tape();

// For the autograd node that runs on this thread: what an unpack may hand to it.
CopyOut copy_out_for_current_node();

} // namespace torchlms
