// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <chrono>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "api/chain.h"

namespace torchlms {
namespace {

std::vector<at::Tensor> step(Session& session, const Chain& chain) {
  at::Tensor loss;
  {
    Scope scope(session);
    loss = chain.forward();
  }
  loss.backward();
  auto gradients = chain.gradients();
  chain.zero_grad();
  return gradients;
}

TEST(Session, GivesEqualGradientsWithEverythingMoved) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  Session session(smallest());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(equal(step(session, chain), plain)) << i;
  }
  const Report report = session.report();
  EXPECT_EQ(report.state, "executing");
  EXPECT_EQ(report.step, 4);
  EXPECT_GT(report.swapped_bytes, 0);
  EXPECT_EQ(report.saved_bytes, report.kept_bytes + report.swapped_bytes);
}

TEST(Session, StaysInsideItsBudget) {
  const Chain chain(20);
  const auto plain = chain.plain_gradients();
  Session counting({.policy = Policy::kOff});
  step(counting, chain);
  const int64_t plain_peak = counting.report().peak_bytes;
  const int64_t budget = held_bytes() + (plain_peak - held_bytes()) / 2;
  Session session({.budget_bytes = budget, .min_offload_bytes = 1 << 14});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(equal(step(session, chain), plain)) << i;
    EXPECT_LE(session.report().peak_bytes, budget) << i;
  }
  EXPECT_NE(session.plan_json().find("torchlms.plan_file"), std::string::npos);
}

TEST(Session, GivesEqualGradientsUnderEveryPolicy) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  for (const Policy policy : {Policy::kAuto, Policy::kSwap, Policy::kRecompute, Policy::kHybrid}) {
    Session session({.budget_bytes = Budget::minimum(), .policy = policy, .min_offload_bytes = 1 << 14});
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(equal(step(session, chain), plain)) << i;
    }
    const Report report = session.report();
    EXPECT_EQ(report.saved_bytes, report.kept_bytes + report.swapped_bytes + report.recomputed_bytes);
    if (policy == Policy::kSwap || policy == Policy::kRecompute) { // the others go by measured times
      EXPECT_EQ(report.recomputed_bytes > 0, policy == Policy::kRecompute) << report;
    }
  }
}

TEST(Session, IsNotNeededByGraphsThatItServed) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  at::Tensor loss;
  {
    Session session(smallest());
    Scope scope(session);
    loss = chain.forward();
  }
  loss.backward();
  EXPECT_TRUE(equal(chain.gradients(), plain));
}

TEST(Session, HoldsTheDeviceWhileItsGraphsLive) {
  const Chain chain;
  Session first(smallest());
  Session second(smallest());
  at::Tensor loss;
  {
    Scope scope(first);
    loss = chain.forward();
  }
  EXPECT_THROW(Scope{second}, std::invalid_argument);
  loss.reset();
  const auto plain = chain.plain_gradients();
  EXPECT_TRUE(equal(step(second, chain), plain));
  EXPECT_TRUE(equal(step(first, chain), plain));
}

TEST(Session, FreesEverythingWhenAGraphIsDropped) {
  const Chain chain;
  Session session(smallest());
  step(session, chain);
  const int64_t before = held_bytes();
  for (int i = 0; i < 3; ++i) {
    at::Tensor loss;
    {
      Scope scope(session);
      loss = chain.forward();
    }
    loss.reset();
    // A copy that is under way keeps its block until it is done.
    for (int waited = 0; held_bytes() != before && waited < 1000; ++waited) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(held_bytes(), before);
  }
}

TEST(Session, JoinsPassesBetweenStepBoundaries) {
  const Chain chain;
  Session session(smallest());
  const auto saved_bytes_of = [&](int num_passes) {
    session.step_boundary();
    for (int i = 0; i < num_passes; ++i) {
      step(session, chain);
    }
    session.step_boundary();
    return session.report().saved_bytes;
  };
  const int64_t one = saved_bytes_of(1);
  EXPECT_GT(one, 0);
  EXPECT_EQ(saved_bytes_of(3), 3 * one);
}

TEST(Scope, OfOneSessionNests) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  Session session(smallest());
  at::Tensor loss;
  {
    Scope outer(session);
    {
      Scope inner(session);
    }
    loss = chain.forward(); // still inside
  }
  loss.backward();
  EXPECT_TRUE(equal(chain.gradients(), plain));
  EXPECT_GT(session.report().swapped_bytes, 0);
}

TEST(Scope, OfAnotherSessionDoesNotNest) {
  Session outer_session(smallest());
  Session inner_session(smallest());
  Scope outer(outer_session);
  try {
    Scope inner(inner_session);
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("budget=min"), std::string::npos) << error.what();
  }
}

TEST(Scope, ClosesWhenTheForwardPassThrows) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  Session session(smallest());
  EXPECT_THROW(
      {
        Scope scope(session);
        chain.forward();
        chain.input.mm(chain.input); // shapes do not fit
      },
      c10::Error);
  EXPECT_TRUE(equal(step(session, chain), plain));
  Session other(smallest());
  EXPECT_TRUE(equal(step(other, chain), plain));
}

TEST(Scope, DoesNothingWithoutGradients) {
  const Chain chain;
  Session session(smallest());
  const at::NoGradGuard no_grad;
  Scope scope(session);
  chain.forward();
  EXPECT_EQ(session.report().step, 0);
}

TEST(Scope, ServesABackwardInsideIt) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  Session session(smallest());
  for (int i = 0; i < 3; ++i) {
    {
      Scope scope(session);
      chain.forward().backward();
    }
    EXPECT_TRUE(equal(chain.gradients(), plain));
    chain.zero_grad();
  }
  EXPECT_EQ(session.report().step, 3);
  EXPECT_EQ(session.report().state, "executing");
}

TEST(Scope, ServesBackwardOfBackward) {
  const auto second_order = [](Session* session) {
    const Chain chain(3);
    at::Tensor penalty;
    {
      std::optional<Scope> scope;
      if (session) {
        scope.emplace(*session);
      }
      const at::Tensor loss = chain.forward();
      loss.backward(/*gradient=*/{}, /*keep_graph=*/true, /*create_graph=*/true);
      penalty = chain.weights[0].grad().pow(2).sum();
    }
    chain.zero_grad();
    penalty.backward();
    return chain.gradients();
  };
  Session session(smallest());
  const auto plain = second_order(nullptr);
  EXPECT_TRUE(equal(second_order(&session), plain));
  EXPECT_TRUE(equal(second_order(&session), plain));
}

TEST(Scope, ServesTwoBackwardsThroughOneGraph) {
  const Chain chain;
  chain.forward().backward();
  chain.forward().backward();
  const auto plain = chain.gradients();
  chain.zero_grad();
  Session session(smallest());
  at::Tensor loss;
  {
    Scope scope(session);
    loss = chain.forward();
  }
  loss.backward({}, /*keep_graph=*/true);
  loss.backward();
  EXPECT_TRUE(equal(chain.gradients(), plain));
}

TEST(Scope, FindsChangesInPlaceAsPlainLibTorchDoes) {
  const Chain chain;
  Session session(smallest());
  at::Tensor y;
  {
    Scope scope(session);
    y = chain.input.mm(chain.weights[0]).tanh();
  }
  const at::Tensor loss = y.sum();
  y.detach().add_(1); // the saved result of tanh
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Scope, PassesSparseTensorsThrough) {
  const Chain chain;
  const at::Tensor sparse = chain.input.to_sparse();
  const auto gradient = [&](Session* session) {
    std::optional<Scope> scope;
    if (session) {
      scope.emplace(*session);
    }
    sparse.mm(chain.weights[0]).tanh().sum().backward();
    const at::Tensor result = chain.weights[0].grad().clone();
    chain.zero_grad();
    return result;
  };
  const at::Tensor plain = gradient(nullptr);
  Session session(smallest());
  EXPECT_TRUE(gradient(&session).equal(plain));
  EXPECT_GT(session.report().not_planned.at("kind of tensor"), 0);
}

// Whether a process that is forked here computes as it does without a session, and ends the session.
bool child_goes_on(std::optional<Session>& session, const Chain& chain) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(120); // one that hangs has failed
    at::set_num_threads(1); // GNU OpenMP's threads do not survive a fork
    const at::Tensor plain = chain.forward();
    std::optional<Scope> scope(*session);
    const bool is_equal = chain.forward().equal(plain);
    scope.reset();
    session.reset();
    _exit(is_equal ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Scope, DoesNothingInAForkedChildWhoseParentGoesOn) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  std::optional<Session> session(smallest());
  step(*session, chain); // from now on its link has threads
  at::Tensor loss;
  {
    Scope scope(*session);
    loss = chain.forward();
    EXPECT_TRUE(child_goes_on(session, chain));
  }
  loss.backward();
  EXPECT_TRUE(equal(chain.gradients(), plain));
  EXPECT_TRUE(child_goes_on(session, chain));
}

TEST(Disabled, LeavesARegionOut) {
  const Chain chain;
  const auto plain = chain.plain_gradients();
  Session session(smallest());
  at::Tensor loss;
  {
    Scope scope(session);
    Disabled disabled;
    loss = chain.forward();
  }
  loss.backward();
  EXPECT_TRUE(equal(chain.gradients(), plain));
  EXPECT_EQ(session.report().saved_bytes, 0);
}

TEST(Keep, MarksATensorForTheOpenScope) {
  const Chain chain;
  Session session(smallest());
  at::Tensor loss;
  {
    Scope scope(session);
    loss = keep(chain.input.mm(chain.weights[0])).mm(chain.weights[1]).tanh().sum();
  }
  loss.backward();
  EXPECT_EQ(session.report().not_planned["kept by request"], 1);
}

TEST(Keep, HoldsAStorageAsLongAsItLives) {
  const int64_t before = held_bytes();
  at::Tensor tensor = Chain::numbers({1 << 16});
  std::optional<Keep> kept(tensor);
  tensor.reset();
  EXPECT_GE(held_bytes() - before, 4 << 16);
  kept.reset();
  EXPECT_EQ(held_bytes(), before);
}

TEST(Errors, NameTheBytesThatABudgetLacks) {
  const Chain chain;
  Session session({.budget_bytes = held_bytes() + 1000});
  try {
    step(session, chain);
    FAIL() << "nothing was thrown";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("at least"), std::string::npos) << error.what();
  }
  chain.zero_grad();
}

TEST(Errors, OfTheDiskReachTheProgramFromInsideTheStep) {
  const Chain chain(20);
  const int64_t budget = held_bytes() + (4 << 20);
  Session session({.budget_bytes = budget, .disk_budget_bytes = 4096, .min_offload_bytes = 1 << 14});
  try {
    step(session, chain);
    FAIL() << "nothing was thrown";
  } catch (const DiskError& error) {
    EXPECT_EQ(error.code(), ENOSPC);
  }
  chain.zero_grad();
}

} // namespace
} // namespace torchlms
