// SPDX-License-Identifier: BSD-3-Clause
#include "session.h"

#include <algorithm>
#include <chrono>

#include <c10/util/Exception.h>

#include "human.h"
#include "plan/planner.h"

namespace torchlms {

namespace {

// Who holds the budget of each device. Guarded by its mutex, which is taken before any Session's.
struct DeviceOwners {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Session>> sessions; // by device
};
DeviceOwners& device_owners() {
  static auto* owners = new DeviceOwners; // leaked: tapes may die in static destructors
  return *owners;
}

std::atomic<std::string (*)()> operation_namer{nullptr};
std::atomic<void (*)(const DiskError&)> disk_error_thrower{nullptr};

std::unique_ptr<SwapEngine> make_engine(const SessionOptions& options) {
  Link::Options link;
  link.limit_bytes_per_s = options.link_limit_bytes_per_s;
  return std::make_unique<SwapEngine>(
      device_for(options.device),
      options.disk_path.empty() ? nullptr
                                : std::make_unique<DiskStore>(options.disk_path, options.disk_budget_bytes),
      link,
      LowerTiers::HostOptions{options.host_budget_bytes, options.pin_memory});
}

} // namespace

const char* to_string(Policy policy) {
  switch (policy) {
    case Policy::kAuto:
      return "auto";
    case Policy::kSwap:
      return "swap";
    case Policy::kRecompute:
      return "recompute";
    case Policy::kHybrid:
      return "hybrid";
    case Policy::kOff:
      return "off";
  }
  return "";
}

std::string Session::current_operation() {
  auto* namer = operation_namer.load();
  return namer ? namer() : std::string();
}

void Session::set_operation_namer(std::string (*namer)()) {
  operation_namer = namer;
}

void Session::set_disk_error_thrower(void (*thrower)(const DiskError&)) {
  disk_error_thrower = thrower;
}

std::shared_ptr<Session> Session::create(SessionOptions options) {
  return std::shared_ptr<Session>(new Session(std::move(options)));
}

Session::Session(SessionOptions options)
    : options_(std::move(options)),
      given_costs_(CostFile::from_environment()),
      device_(device_for(options_.device)),
      engine_(make_engine(options_)) {
  if (options_.link_limit_bytes_per_s > 0) {
    costs_.out_bytes_per_s = std::min(costs_.out_bytes_per_s, options_.link_limit_bytes_per_s);
    costs_.in_bytes_per_s = std::min(costs_.in_bytes_per_s, options_.link_limit_bytes_per_s);
  }
  if (given_costs_) {
    costs_ = given_costs_->costs;
  }
}

Session::~Session() {
  auto& owners = device_owners();
  const std::lock_guard lock(owners.mutex);
  const auto owner = owners.sessions.find(device_.device().str());
  if (owner != owners.sessions.end() && owner->second.expired()) {
    owners.sessions.erase(owner);
    device_.clear_budget();
  }
}

Bytes Session::budget_bytes() const {
  return holds_minimum() ? minimum_bytes_.load() : options_.budget_bytes;
}

bool Session::is_busy() const {
  if (num_open_ > 0) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  return std::any_of(tapes_.begin(), tapes_.end(), [](const auto& tape) { return !tape.expired(); });
}

void Session::add_user() {
  ++num_users_;
}

void Session::remove_user() {
  --num_users_;
}

void Session::take_device() {
  auto& owners = device_owners();
  const std::lock_guard lock(owners.mutex);
  auto& owner = owners.sessions[device_.device().str()];
  const std::shared_ptr<Session> other = owner.lock();
  if (other.get() == this) {
    return;
  }
  if (other) {
    TORCH_CHECK_VALUE(
        !other->is_busy(),
        "torchlms: the device is in use by offload(",
        other->options_.name,
        "), which has an open scope or saved tensors that backward has not used yet (after a backward that raised: "
        "until the next one); offload(",
        options_.name,
        ") cannot take it before they are gone");
  }
  owner = weak_from_this();
}

void Session::apply_budget() {
  // "min" is no cap: everything is moved as early as possible, and nothing fails for a byte.
  const Bytes budget = holds_minimum() ? device_.total_bytes() : options_.budget_bytes - external_bytes_;
  device_.set_budget(
      budget,
      [weak = weak_from_this()](Bytes needed) {
        const auto session = weak.lock();
        return session && session->reclaim(needed);
      },
      [weak = weak_from_this()](Bytes requested) {
        const auto session = weak.lock();
        return session ? session->describe(requested) : std::string();
      });
}

bool Session::reclaim(Bytes needed) {
  if (engine_->reclaim(needed)) {
    return true;
  }
  if (num_users_ == 0 && !is_busy()) {
    device_.clear_budget(); // nobody can use this session any more
    return true;
  }
  return false;
}

std::string Session::describe(Bytes requested) {
  if (const std::exception_ptr error = engine_->error()) {
    auto* thrower = disk_error_thrower.load();
    try {
      if (!device_.is_host_memory()) {
        engine_->rethrow_error(); // a copy that a GPU failed once may work: told here, it is forgotten
      }
      std::rethrow_exception(error);
    } catch (const DiskError& disk_error) {
      if (thrower) {
        thrower(disk_error);
      }
      throw;
    }
  }
  const std::string operation = current_operation();
  const Bytes held = device_.held_bytes() + external_bytes_;
  std::string text = "torchlms holds a budget of " + human_bytes(options_.budget_bytes);
  text += operation.empty()
      ? ": "
      : ", and " + operation + " needs at least " + human_bytes(held + requested) + ": ";
  text += human_bytes(requested) + " more than the " + human_bytes(held) + " that are held, of which " +
      human_bytes(device_.managed_bytes()) +
      " are saved tensors that are in use now or that the program still holds. " + where_the_rest_is() +
      " Raise budget to at least " + std::to_string(held + requested) + " bytes, or make the batch smaller.";
  return text;
}

Demand Session::demand_of(
    const OpName& op, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& outputs) {
  {
    const std::lock_guard lock(mutex_);
    if (demand_error_) {
      return Demand::kNone;
    }
  }
  try {
    return options_.demand_of(op, arguments, outputs);
  } catch (...) {
    // Another thread may have failed first: what is dropped here takes the GIL, which no lock may wait for.
    const std::exception_ptr error = std::current_exception();
    const std::lock_guard lock(mutex_);
    if (!demand_error_) {
      demand_error_ = error;
    }
  }
  return Demand::kNone;
}

void Session::rethrow_demand_error() {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(demand_error_, nullptr);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void Session::rethrow_error() {
  rethrow_demand_error();
  engine_->rethrow_error();
}

std::string Session::where_the_rest_is() const {
  LowerTiers& tiers = engine_->tiers();
  const Bytes host_budget = tiers.host().budget_bytes();
  if (tiers.disk() && host_budget == 0) {
    return "Everything else was moved to disk already.";
  }
  return tiers.disk() || !tiers.host().was_full() ? "Everything else was moved off the device already."
                                                  : "The host tier is full (host_budget is " +
          human_bytes(host_budget) + ") and there is no disk tier (disk_path).";
}

void Session::note_peak(Bytes held) {
  Bytes peak = step_peak_.load(std::memory_order_relaxed);
  while (peak < held && !step_peak_.compare_exchange_weak(peak, held, std::memory_order_relaxed)) {
  }
}

void Session::note_external(const c10::Storage& storage) {
  const std::lock_guard lock(mutex_);
  const auto bytes = static_cast<Bytes>(storage.nbytes());
  const bool is_new =
      external_.emplace(storage.unsafeGetStorageImpl(), std::pair{storage.getWeakStorageImpl(), bytes})
          .second;
  external_bytes_ += is_new ? bytes : 0;
}

void Session::program_changed(const char* where, int32_t op) {
  const std::lock_guard lock(mutex_);
  if (has_loaded_plan_ && broken_plan_.empty()) {
    broken_plan_ = std::string(where) + ", op " + std::to_string(op);
  }
  if (!warned_changed_) {
    warned_changed_ = true;
    log(20,
        "the program differs from the recorded one at op " + std::to_string(op) + " (" + where +
            "): this step swaps reactively and is recorded again");
  }
}

void Session::relieve(Bytes margin) {
  if (!holds_minimum()) {
    const Bytes budget = options_.budget_bytes - external_bytes_;
    engine_->relieve(budget - std::max(margin, budget / 8));
  }
}

void Session::log(int level, std::string text) {
  log_.emplace_back(level, std::move(text));
}

std::vector<std::pair<int, std::string>> Session::take_log() {
  const std::lock_guard lock(mutex_);
  return std::exchange(log_, {});
}

const char* Session::policy_name() const {
  return options_.demand_of ? "policy_fn" : to_string(options_.policy);
}

bool Session::finish_open_steps() {
  std::vector<TapePtr> alive;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(tapes_, [&](const std::weak_ptr<Tape>& weak) {
      TapePtr tape = weak.lock();
      if (tape) {
        alive.push_back(std::move(tape));
      }
      return weak.expired();
    });
    std::erase_if(external_, [&](const auto& entry) {
      const bool is_gone = entry.second.first.expired();
      external_bytes_ -= is_gone ? entry.second.second : 0;
      return is_gone;
    });
  }
  bool awaits_backward = false;
  for (const TapePtr& tape : alive) {
    tape->finish_step();
    awaits_backward = awaits_backward || tape->awaits_backward();
  }
  return awaits_backward;
}

TapePtr Session::open_tape() {
  const bool overlaps = finish_open_steps();
  rethrow_error();
  if (is_off()) {
    const std::lock_guard lock(mutex_);
    device_.take_peaks();
    step_peak_ = device_.held_bytes();
    ++num_steps_;
    return nullptr;
  }
  if (device_.is_capturing()) {
    const std::lock_guard lock(mutex_);
    ++num_captures_;
    return nullptr;
  }
  take_device();
  const std::lock_guard lock(mutex_);
  passes_overlap_ = passes_overlap_ || overlaps;
  if (num_open_ == 0) {
    const bool is_first = step_peak_ == 0;
    note_peak(device_.take_peaks().held); // the optimizer's, since the last event
    learn_all();
    if (!is_first) { // of a step that was published before its optimizer ran, too
      report_.peak_bytes = std::max<Bytes>(report_.peak_bytes, step_peak_ + external_bytes_);
    }
    step_peak_ = device_.held_bytes();
    if (!programs_.empty() && learnt(programs_.front()->trace()).feedback.starts_clean()) {
      device_.release_cached();
    }
  }
  plan(device_.held_bytes() - device_.managed_bytes());
  apply_budget();
  auto tape = std::make_shared<Tape>(shared_from_this(), programs_, records_next_);
  tapes_.push_back(tape);
  ++num_open_;
  return tape;
}

void Session::close_tape(const TapePtr& tape) {
  tape->end_forward();
  --num_open_;
  if (tape->mode() == Tape::Mode::kWatching) {
    tape->finish_step(); // it has no handles whose end would tell
  }
}

void Session::step_finished(Tape::Outcome outcome) {
  const std::lock_guard lock(mutex_);
  finished_.push_back(std::move(outcome));
}

bool Session::wants_plan() const {
  const std::lock_guard lock(mutex_);
  return !recorded_.empty() ||
      std::any_of(finished_.begin(), finished_.end(), [](const Tape::Outcome& outcome) {
        return outcome.is_complete && !outcome.followed;
      });
}

void Session::step_boundary() {
  finish_open_steps();
  const std::lock_guard lock(mutex_);
  note_peak(device_.take_peaks().held);
  learn_all();
  if (num_joined_ > 0) {
    report_ = joined_;
    report_.step = ++num_steps_;
  }
  joins_passes_ = true;
  joined_ = Report();
  num_joined_ = 0;
}

} // namespace torchlms
