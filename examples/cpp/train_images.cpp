// SPDX-License-Identifier: BSD-3-Clause
// Trains a residual network and a transformer on scanned digits, each twice: with plain LibTorch, then under a
// budget of 0.4 of what that held, and compares peak, time and gradients. Exits with 1 when the budget was
// exceeded or a bit differs.
//
//     train_images [--batch 64] [--steps 4]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <torch/torch.h>
#include <torchlms/torchlms.h>
#include <vector>

#include "digits.h"
#include "models.h"

namespace {

constexpr double kShare = 0.4; // of plain's peak: the budget

struct Settings {
  int64_t batch = 64;
  int64_t steps = 4;
};

struct Training {
  int64_t peak_bytes = 0;
  double seconds_per_step = 0; // the first, which is recorded, left out
  std::vector<float> numbers; // every loss, and the gradients and parameters at the end
};

// Not as tensors, which would count against the next training's budget.
void append(std::vector<float>& numbers, const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().contiguous();
  numbers.insert(numbers.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
}

template <class Model>
Training train(torchlms::Session& session, const Settings& settings) {
  torch::manual_seed(0);
  Model model;
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  const Digits digits = load_digits(DATA_FILE, settings.batch);
  Training training;
  session.report(); // counts from here
  for (int64_t step = 0; step < settings.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchlms::Scope scope(session);
      loss = torch::nn::functional::cross_entropy(model->forward(digits.images), digits.labels);
    }
    loss.backward();
    optimizer.step();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    training.seconds_per_step += step == 0 ? 0 : elapsed.count() / static_cast<double>(settings.steps - 1);
    training.peak_bytes = std::max(training.peak_bytes, session.report().peak_bytes);
    append(training.numbers, loss);
  }
  for (const torch::Tensor& parameter : model->parameters()) {
    append(training.numbers, parameter.grad());
    append(training.numbers, parameter);
  }
  return training;
}

bool are_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// Whether the model was trained within its budget, with the same numbers.
template <class Model>
bool compare(const std::string& name, const Settings& settings) {
  std::cout << name << ", batch " << settings.batch << ", " << settings.steps << " steps" << std::endl;
  torchlms::Session counting({.policy = torchlms::Policy::kOff});
  const Training plain = train<Model>(counting, settings);
  const auto budget_bytes = static_cast<int64_t>(kShare * static_cast<double>(plain.peak_bytes));
  torchlms::Session session({.budget_bytes = budget_bytes, .min_offload_bytes = 64 << 10});
  const Training small = train<Model>(session, settings);
  const bool is_equal = are_equal(plain.numbers, small.numbers);
  std::cout << session.report();
  std::printf(
      "\n  %-10s %12s %12s\n  %-10s %8.1f MiB %10.2f s\n  %-10s %8.1f MiB %10.2f s\n  gradients %s\n\n",
      "",
      "peak",
      "time a step",
      "plain",
      mebibytes(plain.peak_bytes),
      plain.seconds_per_step,
      "torchlms",
      mebibytes(small.peak_bytes),
      small.seconds_per_step,
      is_equal ? "equal, bit for bit" : "DIFFER");
  std::fflush(stdout);
  return is_equal && small.peak_bytes <= budget_bytes;
}

Settings read_arguments(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    int64_t* setting = name == "--batch" ? &settings.batch : name == "--steps" ? &settings.steps : nullptr;
    if (!setting || i + 1 == argc || (*setting = std::atoll(argv[i + 1])) < 1) {
      std::fputs("usage: train_images [--batch 64] [--steps 4]\n", stderr);
      std::exit(2);
    }
  }
  return settings;
}

} // namespace

int main(int argc, char** argv) {
  const Settings settings = read_arguments(argc, argv);
  const bool trained_first = compare<ResNet20>("ResNet-20", settings);
  const bool trained_both = compare<VisionTransformer>("Vision transformer", settings) && trained_first;
  std::printf(
      trained_both ? "OK: both trained at %.1f of plain's peak, with equal gradients\n"
                   : "FAILED: not both trained at %.1f of plain's peak with equal gradients\n",
      kShare);
  return trained_both ? 0 : 1;
}
