// SPDX-License-Identifier: BSD-3-Clause
// Large model support for LibTorch: a training step inside a memory budget, with equal gradients.
//
//     torchlms::Session session({.budget_bytes = 20ull << 30}); // make once, use every step
//     {
//       torchlms::Scope scope(session);
//       loss = criterion(net->forward(x), y);
//     }
//     loss.backward();
//     std::cout << session.report();
//
// Needs C++17; the designated initializer above is C++20. See docs/cpp.md.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#define TORCHLMS_API __attribute__((visibility("default")))

namespace at {
class Tensor;
} // namespace at

namespace torchlms {
namespace v1 {

struct BudgetResolver; // the library's own

// Bytes that all tensors together may hold on the device: parameters, gradients, optimizer state,
// inputs, saved tensors, workspaces.
class TORCHLMS_API Budget {
 public:
  // What is held, and 0.9 of what is available at first use, shared by the processes of this machine
  // (LOCAL_WORLD_SIZE). The default.
  static Budget automatic();
  // As little as possible: everything that may be moved is.
  static Budget minimum();
  // Of the device's memory. Throws std::invalid_argument outside of (0, 1].
  static Budget fraction(double share);

  Budget() = default;
  // Throws std::invalid_argument when `bytes` is not above zero.
  template <class Int, std::enable_if_t<std::is_integral_v<Int> && !std::is_same_v<Int, bool>, int> = 0>
  Budget(Int bytes) : Budget(Kind::kBytes, checked(bytes > Int{0}, static_cast<uint64_t>(bytes)), 0) {}
  template <class Float, std::enable_if_t<std::is_floating_point_v<Float>, int> = 0>
  Budget(Float) = delete; // bytes are integers, shares of the device are fraction()

 private:
  friend struct BudgetResolver;
  enum class Kind : uint8_t { kAutomatic, kMinimum, kFraction, kBytes };

  Budget(Kind kind, uint64_t bytes, double share) : kind_(kind), bytes_(bytes), share_(share) {}
  static uint64_t checked(bool is_positive, uint64_t bytes);

  Kind kind_ = Kind::kAutomatic;
  uint64_t bytes_ = 0;
  double share_ = 0;
};

enum class Policy : uint8_t {
  kAuto, // the best plan
  kSwap, // only swapping
  kRecompute, // runs again what it may, swaps the rest
  kHybrid, // swaps, and turns to running again by decreasing swap volume
  kOff, // moves nothing, only counts
};

// Settings of a session; a plain aggregate.
struct TORCHLMS_API Options {
  // Lower: more traffic.
  Budget budget_bytes = Budget();
  Policy policy = Policy::kAuto;
  // Folder of the disk tier. Empty: $TMPDIR or /tmp, unless that is in memory, then /var/tmp.
  std::string disk_path = {};
  // Bytes that copies may take on the disk. 0: 0.8 of what is free, shared as Budget::automatic().
  uint64_t disk_budget_bytes = 0;
  // What swapping may use, per direction. 0: no limit.
  double link_limit_bytes_per_s = 0;
  // Smaller storages are never moved. Lower reaches smaller budgets at more overhead.
  uint64_t min_offload_bytes = uint64_t{1} << 20;
  // Check each storage that comes back against a checksum taken when it left. Costs time.
  bool verify = false;

  // The defaults, overridden by the variables TORCHLMS_BUDGET ("20GiB", "0.8", "auto", "min"),
  // TORCHLMS_POLICY ("auto", "swap", "recompute", "hybrid", "off"), TORCHLMS_DISK_PATH, TORCHLMS_DISK_BUDGET,
  // TORCHLMS_LINK_LIMIT ("400MB/s"), TORCHLMS_MIN_OFFLOAD_BYTES and TORCHLMS_VERIFY. Throws
  // std::invalid_argument that quotes the variable, its value and the accepted forms.
  static Options from_environment();
};

// What the last step did. Times are in microseconds; what is not known (yet) is empty.
struct TORCHLMS_API Report {
  struct Link {
    int64_t bytes = 0;
    double busy_us = 0;
    double bandwidth_bytes_per_s = 0;
    int64_t late = 0; // transfers that were waited for
    double wait_us_p50 = 0; // from the submission of a transfer to its first chunk
    double wait_us_p99 = 0;
  };

  int64_t step = 0; // how many so far
  std::string state; // "recording", "executing" or "off"
  std::string policy;
  int64_t budget_bytes = 0;
  int64_t peak_bytes = 0; // highest held at once in the last step
  std::optional<int64_t> unlimited_peak_bytes; // what plain LibTorch would have held
  std::optional<int64_t> predicted_peak_bytes;
  std::optional<double> predicted_step_us;
  std::optional<double> measured_step_us;
  std::optional<double> lower_bound_us;
  std::optional<int64_t> floor_bytes; // the smallest budget that works
  std::optional<std::string> floor_op; // the op that sets it
  int64_t saved_bytes = 0; // kept + swapped + recomputed
  int64_t kept_bytes = 0;
  int64_t swapped_bytes = 0;
  int64_t recomputed_bytes = 0;
  int64_t deduplicated_bytes = 0;
  double stall_us = 0;
  double recompute_us = 0;
  double plan_us = 0;
  Link out;
  Link in;
  int64_t disk_bytes = 0; // highest in use at once
  int64_t disk_written_total_bytes = 0;
  int64_t host_bytes = 0;
  int64_t uncounted_bytes = 0; // older storages, not made by the device's allocator
  int64_t num_evictions = 0; // swap-outs that no plan foresaw
  std::map<std::string, int64_t> not_planned; // reason -> saved tensors
};
TORCHLMS_API std::ostream& operator<<(std::ostream& out, const Report& report);

// The budget is below what the program needs at one of its ops, whatever is moved; the text names the op
// and the smallest budget that works. Thrown at scope entry; inside an op an allocation that cannot fit
// is a c10::OutOfMemoryError with the same words.
class TORCHLMS_API BudgetError : public std::runtime_error {
 public:
  explicit BudgetError(const std::string& text);
  ~BudgetError() override;
};

// The disk tier failed; the text names the path, the bytes needed and the bytes free.
class TORCHLMS_API DiskError : public std::runtime_error {
 public:
  DiskError(int code, const std::string& text);
  ~DiskError() override;
  int code() const noexcept { // as errno
    return code_;
  }

 private:
  int code_;
};

// This process's autograd does not ask the library's hooks; the text says why and what to do.
class TORCHLMS_API SetupError : public std::runtime_error {
 public:
  explicit SetupError(const std::string& text);
  ~SetupError() override;
};

// Records steps, plans them, and holds the budget. Serves many steps, several forwards before one
// backward, gradient accumulation, and threads; graphs may outlive it. A forked child has no sessions:
// there, scopes do nothing.
//
// Thread-safe. When the last session that is not busy is gone, so is its budget.
class TORCHLMS_API Session {
 public:
  // Throws std::invalid_argument for a bad option, quoted; DiskError; SetupError.
  explicit Session(const Options& options = Options::from_environment());
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  Report report();
  // Ends a step: from the first call on, all passes between two calls are one step (gradient accumulation).
  void step_boundary();
  // The plan that is followed, with the trace that it was made for, in the format of the Python package's
  // plan files. Empty before there is one.
  std::string plan_json();
  // What the session found worth telling since the last call, for the program's log.
  std::vector<std::string> take_log();

 private:
  friend class Scope;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Put round a forward pass: what autograd saves on this thread while it lives is under the session's
// budget. Backward may run inside or after it. Where gradients are off it does nothing.
//
// Belongs to the thread that made it. Scopes of one session nest.
class TORCHLMS_API Scope {
 public:
  // Throws BudgetError; DiskError, an earlier one of a write included; std::invalid_argument when
  // another session has an open scope on this thread, or live saved tensors.
  explicit Scope(Session& session);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::shared_ptr<Session::Impl> session_; // null: gradients were off
};

// While it lives, its thread's open scope records and moves nothing. Nests.
class TORCHLMS_API Disabled {
 public:
  Disabled();
  ~Disabled();
  Disabled(const Disabled&) = delete;
  Disabled& operator=(const Disabled&) = delete;
};

// Keeps the tensor's storage on the device for the rest of this thread's open scope. Returns the tensor.
TORCHLMS_API const at::Tensor& keep(const at::Tensor& tensor);

// Says that an operator of another library ("ns::op", or "ns::op.overload") is a function of its inputs: run
// again on the same bytes it gives the same bytes, draws no random numbers, and changes nothing else. From the
// next step that is recorded on, plans may recompute what it made. Throws std::invalid_argument when it is not
// the name of an operator.
TORCHLMS_API void recomputable(const std::string& op_name);

// While it lives, the tensor's storage stays on the device, in whatever scope; it is not freed either.
class TORCHLMS_API Keep {
 public:
  explicit Keep(const at::Tensor& tensor);
  ~Keep();
  Keep(Keep&&) noexcept;
  Keep& operator=(Keep&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace v1

#ifndef TORCHLMS_BUILD // inside the library these names mean the implementation
using namespace v1;
#endif

} // namespace torchlms
