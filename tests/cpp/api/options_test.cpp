// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torchlms/torchlms.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>

namespace torchlms {
namespace {

static_assert(!std::is_constructible_v<Budget, double>, "0.8 bytes must not compile");
static_assert(!std::is_constructible_v<Budget, bool>);

// An environment variable for the time of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
  }
  ~Variable() {
    unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

template <class F>
std::string text_of_invalid_argument(const F& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

int64_t budget_of_environment(const char* text) {
  const Variable budget("TORCHLMS_BUDGET", text);
  return Session().report().budget_bytes;
}

TEST(Budget, RejectsWhatIsNotAboveZero) {
  EXPECT_THROW(Budget(0), std::invalid_argument);
  EXPECT_NE(text_of_invalid_argument([] { Budget(-5); }).find("-5"), std::string::npos);
  EXPECT_THROW(Budget::fraction(0), std::invalid_argument);
  EXPECT_THROW(Budget::fraction(1.5), std::invalid_argument);
}

TEST(Budget, IsBytesOrAShareOfTheDevice) {
  const int64_t all = Session({.budget_bytes = Budget::fraction(1)}).report().budget_bytes;
  EXPECT_EQ(Session({.budget_bytes = 20 << 20}).report().budget_bytes, 20 << 20);
  EXPECT_NEAR(
      static_cast<double>(Session({.budget_bytes = Budget::fraction(0.5)}).report().budget_bytes),
      static_cast<double>(all) / 2,
      1);
  const int64_t automatic = Session({.budget_bytes = Budget::automatic()}).report().budget_bytes;
  EXPECT_GT(automatic, 0);
  EXPECT_LE(automatic, all);
}

TEST(Session, RejectsABudgetAboveTheDeviceAndQuotesIt) {
  const std::string text = text_of_invalid_argument([] { Session({.budget_bytes = uint64_t{1} << 60}); });
  EXPECT_NE(text.find("1152921504606846976"), std::string::npos) << text;
  EXPECT_NE(text.find("more than the device has"), std::string::npos) << text;
}

TEST(Session, RejectsARateBelowZero) {
  EXPECT_THROW(Session({.link_limit_bytes_per_s = -1}), std::invalid_argument);
}

TEST(Session, TellsErrnoAndPathOfADiskFolderThatCannotBeUsed) {
  try {
    Session({.disk_path = "/no/such/folder"});
    FAIL() << "nothing was thrown";
  } catch (const DiskError& error) {
    EXPECT_EQ(error.code(), ENOENT);
    EXPECT_NE(std::string(error.what()).find("/no/such/folder"), std::string::npos);
  }
}

TEST(Environment, SetsEachOption) {
  const Variable budget("TORCHLMS_BUDGET", "1.5 MiB");
  const Variable policy("TORCHLMS_POLICY", "swap");
  const Variable path("TORCHLMS_DISK_PATH", "/var/tmp");
  const Variable disk("TORCHLMS_DISK_BUDGET", "2GB");
  const Variable limit("TORCHLMS_LINK_LIMIT", "400MB/s");
  const Variable smallest("TORCHLMS_MIN_OFFLOAD_BYTES", "4096");
  const Variable verify("TORCHLMS_VERIFY", "On");
  const Options options = Options::from_environment();
  EXPECT_EQ(options.policy, Policy::kSwap);
  EXPECT_EQ(options.disk_path, "/var/tmp");
  EXPECT_EQ(options.disk_budget_bytes, 2000000000u);
  EXPECT_EQ(options.link_limit_bytes_per_s, 4e8);
  EXPECT_EQ(options.min_offload_bytes, 4096u);
  EXPECT_TRUE(options.verify);
  EXPECT_EQ(Session(options).report().budget_bytes, 3 << 19);
}

TEST(Environment, TakesTheBudgetInEveryForm) {
  EXPECT_EQ(budget_of_environment("1000000"), 1000000);
  EXPECT_EQ(budget_of_environment("20 MB"), 20000000);
  EXPECT_EQ(budget_of_environment("min"), 0);
  EXPECT_GT(budget_of_environment("auto"), 0);
  EXPECT_EQ(
      budget_of_environment("0.25"), Session({.budget_bytes = Budget::fraction(0.25)}).report().budget_bytes);
}

TEST(Environment, LeavesDefaultsWhereVariablesAreEmptyOrNone) {
  const Variable policy("TORCHLMS_POLICY", "");
  const Variable path("TORCHLMS_DISK_PATH", "none");
  const Variable limit("TORCHLMS_LINK_LIMIT", "None");
  const Options options = Options::from_environment();
  EXPECT_EQ(options.policy, Policy::kAuto);
  EXPECT_EQ(options.disk_path, "");
  EXPECT_EQ(options.link_limit_bytes_per_s, 0);
}

TEST(Environment, QuotesABadValueItsVariableAndTheAcceptedForms) {
  const std::pair<const char*, const char*> bad[] = {
      {"TORCHLMS_BUDGET", "20 gigs"},
      {"TORCHLMS_BUDGET", "-1"},
      {"TORCHLMS_BUDGET", "1.5"},
      {"TORCHLMS_BUDGET", "0"},
      {"TORCHLMS_POLICY", "fast"},
      {"TORCHLMS_DISK_BUDGET", "0"},
      {"TORCHLMS_LINK_LIMIT", "400MB"},
      {"TORCHLMS_MIN_OFFLOAD_BYTES", "1.5"},
      {"TORCHLMS_VERIFY", "maybe"}};
  for (const auto& [name, value] : bad) {
    const Variable variable(name, value);
    const std::string text = text_of_invalid_argument([] { Options::from_environment(); });
    EXPECT_NE(text.find(std::string(name) + "=\"" + value + "\""), std::string::npos) << text;
    EXPECT_NE(text.find("Accepted: "), std::string::npos) << text;
  }
}

TEST(Report, PrintsItsFigures) {
  Report report;
  report.state = "executing";
  report.step = 3;
  report.peak_bytes = 5 << 20;
  report.floor_bytes = 2 << 20;
  report.floor_op = "aten::mm";
  report.not_planned["alive at scope entry"] = 7;
  std::ostringstream out;
  out << report;
  for (const char* part :
       {"executing", "steps so far: 3", "5.0 MiB", "aten::mm", "not planned: alive at scope entry"}) {
    EXPECT_NE(out.str().find(part), std::string::npos) << out.str();
  }
}

} // namespace
} // namespace torchlms
