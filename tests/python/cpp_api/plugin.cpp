// SPDX-License-Identifier: BSD-3-Clause
// Trains the chain of test_cpp_api.py in C++.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <exception>
#include <fstream>
#include <string>
#include <torchlms/torchlms.h>
#include <vector>

namespace {

at::Tensor numbers(int64_t rows, int64_t columns) {
  return at::arange(rows * columns, at::kFloat).sin().view({rows, columns});
}

void train(torchlms::Session& session, std::ostream& gradients) {
  const at::Tensor input = numbers(512, 256);
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 12; ++layer) {
    weights.push_back(numbers(256, 256).mul(0.1).requires_grad_());
  }
  for (int step = 0; step < 4; ++step) {
    at::Tensor loss;
    {
      torchlms::Scope scope(session);
      at::Tensor x = input;
      for (const at::Tensor& weight : weights) {
        x = x.mm(weight).tanh();
      }
      loss = x.mul(x).sum();
    }
    loss.backward();
  }
  for (const at::Tensor& weight : weights) {
    gradients.write(
        static_cast<const char*>(weight.grad().const_data_ptr()),
        static_cast<std::streamsize>(weight.grad().nbytes()));
  }
}

} // namespace

// Writes <folder>/gradients and <folder>/plan.json. Returns "" or what was thrown, with the type's name.
extern "C" const char* train_chain(int64_t budget_bytes, const char* folder) {
  static std::string answer;
  try {
    auto options = torchlms::Options::from_environment();
    options.budget_bytes = budget_bytes;
    options.min_offload_bytes = 1 << 16;
    torchlms::Session session(options);
    std::ofstream gradients(std::string(folder) + "/gradients", std::ios::binary);
    train(session, gradients);
    std::ofstream(std::string(folder) + "/plan.json") << session.plan_json();
    const torchlms::Report report = session.report();
    answer = report.swapped_bytes + report.recomputed_bytes > 0 ? "" : "nothing was moved";
  } catch (const torchlms::SetupError& error) {
    answer = std::string("SetupError: ") + error.what();
  } catch (const std::exception& error) {
    answer = error.what();
  }
  return answer.c_str();
}
