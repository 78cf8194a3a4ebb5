// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchlms {

// How many intra-op threads kernels on this thread may use now, and for this thread only. Unlike
// at::get_num_threads() and at::set_num_threads() they leave alone what else PyTorch keeps: whether this
// thread has its number yet, and the process's number, which threads take over when they first need one.
int thread_count();
void set_thread_count(int count);

} // namespace torchlms
