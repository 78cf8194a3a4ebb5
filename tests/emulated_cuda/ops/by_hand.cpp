// SPDX-License-Identifier: BSD-3-Clause
#include "by_hand.h"

#include <unordered_set>

namespace emulated_cuda {

bool is_by_hand(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::copy_",
      "aten::native_dropout",
      "aten::_thnn_fused_lstm_cell",
      "aten::_thnn_fused_lstm_cell_backward_impl",
      "aten::_thnn_fused_gru_cell",
      "aten::_thnn_fused_gru_cell_backward",
  };
  return names.count(name) > 0;
}

void install_by_hand(torch::Library& library) {
  install_copy(library);
  install_cells(library);
  install_dropout(library);
}

} // namespace emulated_cuda
