// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <sstream>
#include <thread>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include "api/chain.h"

namespace torchlms {
namespace {

using torch::nn::Linear;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() {
    reset();
  }
  void reset() override {
    first = register_module("first", Linear(128, 256));
    second = register_module("second", Linear(256, 128));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(first(x).tanh()).tanh().pow(2).sum();
  }
  Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

std::vector<at::Tensor> step(Session* session, NetImpl& net, const at::Tensor& input) {
  at::Tensor loss;
  {
    std::optional<Scope> scope;
    if (session) {
      scope.emplace(*session);
    }
    loss = net.forward(input);
  }
  loss.backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net.parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  net.zero_grad();
  return gradients;
}

std::string saved(const Net& net) {
  std::ostringstream out;
  torch::save(net, out);
  return out.str();
}

// Returns its saved tensor as the gradient, which AccumulateGrad may then keep and add into.
struct ReturnsWhatItSaved : torch::autograd::Function<ReturnsWhatItSaved> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& saved) {
    context->save_for_backward({saved});
    return x.sum();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list&) {
    return {context->get_saved_variables()[0], at::Tensor()};
  }
};

TEST(Modules, AreClonedAsWithoutASession) {
  Net net;
  const at::Tensor input = Chain::numbers({256, 128});
  const auto plain = step(nullptr, *net, input);
  Session session(smallest());
  EXPECT_TRUE(equal(step(&session, *net, input), plain));
  const auto copy = std::dynamic_pointer_cast<NetImpl>(net->clone());
  EXPECT_TRUE(equal(step(&session, *copy, input), plain));
  EXPECT_TRUE(equal(step(&session, *net, input), plain));
}

TEST(Modules, AreSavedInTheSameBytes) {
  Net net;
  const std::string before = saved(net);
  Session session(smallest());
  const at::Tensor input = Chain::numbers({256, 128});
  at::Tensor loss;
  {
    Scope scope(session);
    loss = net->forward(input);
    EXPECT_EQ(saved(net), before);
  }
  loss.backward();
  net->zero_grad();
  EXPECT_EQ(saved(net), before);
}

TEST(Modules, TrainAsReplicasInTwoThreads) {
  Net net;
  const at::Tensor inputs[] = {Chain::numbers({256, 128}), Chain::numbers({256, 128}).mul(2)};
  Session session(smallest());
  for (int round = 0; round < 3; ++round) {
    std::vector<at::Tensor> gradients[2];
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i, replica = std::dynamic_pointer_cast<NetImpl>(net->clone())] {
        gradients[i] = step(&session, *replica, inputs[i]);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(equal(gradients[i], step(nullptr, *net, inputs[i]))) << round << ' ' << i;
    }
  }
}

TEST(Modules, AccumulateWhatACustomFunctionSaved) {
  const auto accumulate = [](Session* session) {
    at::Tensor x = Chain::numbers({64, 64}).requires_grad_();
    const at::Tensor constant = Chain::numbers({64, 64});
    for (int i = 0; i < 3; ++i) {
      std::optional<Scope> scope;
      if (session) {
        scope.emplace(*session);
      }
      ReturnsWhatItSaved::apply(x, constant).backward();
    }
    return std::vector<at::Tensor>{x.grad(), constant};
  };
  Session session(smallest());
  EXPECT_TRUE(equal(accumulate(&session), accumulate(nullptr)));
}

at::Tensor twice(const at::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView unseen;
  return x.add(x);
}

TORCH_LIBRARY(torchlms_tests, library) {
  library.def("twice(Tensor x) -> Tensor");
  library.impl("twice", c10::DispatchKey::CompositeExplicitAutograd, twice);
}

// Of three steps that save what an operator of another library made.
int64_t recomputed_bytes(const Chain& chain) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torchlms_tests::twice", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  Session session({.budget_bytes = Budget::minimum(), .policy = Policy::kRecompute, .min_offload_bytes = 0});
  for (int i = 0; i < 3; ++i) {
    at::Tensor loss;
    {
      Scope scope(session);
      loss = op.call(chain.input).mm(chain.weights[0]).sum();
    }
    loss.backward();
  }
  return session.report().recomputed_bytes;
}

TEST(Recomputable, LetsAnOperatorOfAnotherLibraryRunAgain) {
  const Chain chain;
  EXPECT_EQ(recomputed_bytes(chain), 0);
  recomputable("torchlms_tests::twice");
  EXPECT_EQ(recomputed_bytes(chain), static_cast<int64_t>(chain.input.nbytes()));
  for (const char* bad : {"", "twice", "::twice", "tests::", "tests::twice.", "tests::twice out"}) {
    EXPECT_THROW(recomputable(bad), std::invalid_argument) << bad;
  }
}

struct OtherEngine : torch::autograd::Engine {
  static Engine& get() {
    static auto* engine = new OtherEngine;
    return *engine;
  }
};

TEST(Setup, SaysThatAnotherEngineReplacedOurs) {
  auto& ours = torch::autograd::Engine::get_default_engine();
  static torch::autograd::Engine* restored = &ours;
  torch::autograd::set_default_engine_stub(OtherEngine::get);
  EXPECT_THROW(Session(), SetupError);
  torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *restored; });
  EXPECT_NO_THROW(Session());
}

} // namespace
} // namespace torchlms
