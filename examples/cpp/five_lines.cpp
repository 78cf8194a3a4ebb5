// SPDX-License-Identifier: BSD-3-Clause
// An existing training loop, and the five lines that put it under a memory budget.
#include <iostream>
#include <torch/torch.h>
#include <torchlms/torchlms.h> // 1

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int layer = 0; layer < 16; ++layer) {
    model->push_back(torch::nn::Linear(256, 256));
    model->push_back(torch::nn::Tanh());
  }
  torch::optim::Adam optimizer(model->parameters());
  const torch::Tensor x = torch::rand({4096, 256});

  torchlms::Session session({.budget_bytes = 64 << 20}); // 2
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    { // 3
      torchlms::Scope scope(session); // 4
      loss = torch::mse_loss(model->forward(x), x);
    }
    loss.backward();
    optimizer.step();
    std::cout << "step " << step << ", loss " << loss.item<float>() << '\n';
  }
  std::cout << session.report(); // 5
}
