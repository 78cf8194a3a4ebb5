// SPDX-License-Identifier: BSD-3-Clause
#include <torchlms/torchlms.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <utility>

#include "cpp_api/engine.h"
#include "cpp_api/errors.h"
#include "cpp_api/public_report.h"
#include "cpp_api/resolve.h"
#include "forked.h"
#include "hooks.h"
#include "program.h"
#include "recompute/purity.h"
#include "session.h"

namespace torchlms::v1 {

BudgetError::BudgetError(const std::string& text) : std::runtime_error(text) {}
BudgetError::~BudgetError() = default;
DiskError::DiskError(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
DiskError::~DiskError() = default;
SetupError::SetupError(const std::string& text) : std::runtime_error(text) {}
SetupError::~SetupError() = default;

struct Session::Impl {
  explicit Impl(const Options& options) : session(torchlms::Session::create(resolve(options))) {
    session->add_user();
    const DiskStore* disk = session->engine().tiers().disk();
    if (!options.disk_path.empty() && disk && disk->is_memory()) {
      TORCH_WARN_ONCE(
          "torchlms: disk_path=",
          disk->folder(),
          " is in memory (tmpfs): what is swapped there still takes RAM");
    }
  }
  ~Impl() {
    session->remove_user();
  }

  const std::shared_ptr<torchlms::Session> session;
};

Session::Session(const Options& options) {
  check_setup();
  impl_ = translated([&] { return std::make_shared<Impl>(options); });
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Report Session::report() {
  return public_report(impl_->session->report());
}

void Session::step_boundary() {
  impl_->session->step_boundary();
}

std::string Session::plan_json() {
  const ProgramPtr program = translated([&] { return impl_->session->latest_program(); });
  return program ? program->to_json() : std::string();
}

std::vector<std::string> Session::take_log() {
  std::vector<std::string> texts;
  for (auto& [level, text] : impl_->session->take_log()) {
    texts.push_back(std::move(text));
  }
  return texts;
}

Scope::Scope(Session& session) {
  if (!c10::GradMode::is_enabled() || in_forked_child()) {
    return;
  }
  translated([&] { enter_scope(session.impl_->session); });
  session_ = session.impl_;
}

Scope::~Scope() {
  if (!session_) {
    return;
  }
  try {
    exit_scope(session_->session);
  } catch (const std::exception& error) {
    TORCH_WARN("torchlms: leaving a scope failed: ", error.what()); // a destructor cannot throw
  }
}

Disabled::Disabled() {
  enter_disabled();
}

Disabled::~Disabled() {
  exit_disabled();
}

const at::Tensor& keep(const at::Tensor& tensor) {
  if (Tape* tape = current_tape()) {
    tape->keep(tensor);
  }
  return tensor;
}

void recomputable(const std::string& op_name) {
  allow_replay(op_name);
}

// Only what nobody but autograd holds is ever moved: a reference is enough.
struct Keep::Impl {
  c10::Storage storage;
};

Keep::Keep(const at::Tensor& tensor) : impl_(std::make_unique<Impl>()) {
  if (tensor.has_storage()) {
    impl_->storage = tensor.storage();
  }
}

Keep::~Keep() = default;
Keep::Keep(Keep&&) noexcept = default;
Keep& Keep::operator=(Keep&&) noexcept = default;

} // namespace torchlms::v1
