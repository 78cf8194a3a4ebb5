// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/op_record.h"

#include <algorithm>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cstring>

#include "recompute/each_tensor.h"
#include "recompute/thread_count.h"

namespace torchlms {

namespace {

// Everything above the kernels: autograd and autocast acted when the op ran first, and modes of the
// thread that unpacks (profiling counters, functorch) have no business with its second run.
constexpr c10::DispatchKeySet kKeysAboveKernels = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset | c10::python_ks | c10::DispatchKeySet(c10::DispatchKey::Functionalize) |
    c10::DispatchKeySet(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) |
    c10::DispatchKeySet(c10::DispatchKey::FuncTorchDynamicLayerBackMode);

// Sixteen words spread over the bytes. Fused optimizers write parameters and bump no version. Not of a device with
// memory of its own: each word would have to wait for it.
uint64_t sample_of(const c10::Storage& storage) {
  constexpr size_t kNumWords = 16;
  const auto* bytes = static_cast<const char*>(storage.data());
  const size_t size = storage.nbytes();
  uint64_t hash = size;
  if (bytes == nullptr || !storage.device().is_cpu() || size < sizeof(uint64_t)) {
    return hash;
  }
  const size_t last = size - sizeof(uint64_t);
  for (size_t i = 0; i < kNumWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + last / (kNumWords - 1) * i, sizeof(word));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

c10::VariableVersion counter_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? c10::VariableVersion() : tensor.unsafeGetTensorImpl()->version_counter();
}

uint32_t version_of(const c10::VariableVersion& counter) {
  return counter.enabled() ? counter.current_version() : 0;
}

// The list with no tensors in it, of the same length and type.
c10::IValue emptied(const c10::IValue& value) {
  const size_t size = value.toListRef().size();
  if (value.isTensorList()) {
    return c10::IValue(std::vector<at::Tensor>(size));
  }
  c10::List<std::optional<at::Tensor>> list;
  for (size_t i = 0; i < size; ++i) {
    list.push_back(std::nullopt);
  }
  return c10::IValue(std::move(list));
}

} // namespace

OpRecord::OpRecord(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args, const IdOf& id_of)
    : op_(traits.handle), ambient_(Ambient::current()), args_(args.begin(), args.end()) {
  const uint64_t scratch = written_args(traits, args) & traits.scratch_args;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool is_list = args[i].isTensorList() || args[i].isOptionalTensorList();
    if (is_list) {
      args_[i] = emptied(args[i]);
    }
    for_each_tensor(args[i], [&](int element, const at::Tensor& tensor) {
      if (!is_list && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        return; // stays among the arguments: nobody else has it
      }
      if (!is_list) {
        args_[i] = c10::IValue();
      }
      const bool is_scratch = i < 64 && (scratch >> i & 1) != 0;
      add_input({static_cast<uint16_t>(i), static_cast<int16_t>(element)}, tensor, is_scratch, id_of);
    });
  }
}

void OpRecord::add_input(Place place, const at::Tensor& tensor, bool is_scratch, const IdOf& id_of) {
  c10::VariableVersion counter = counter_of(tensor);
  const uint32_t version = version_of(counter);
  inputs_.push_back(
      {place,
       is_scratch ? kNone : id_of(tensor),
       View(tensor),
       std::move(counter),
       version,
       is_scratch ? 0 : sample_of(tensor.storage()),
       is_scratch});
}

void OpRecord::set_outputs(const std::vector<c10::IValue>& outputs, const IdOf& id_of) {
  last_thread_count_ = thread_count();
  for (size_t i = 0; i < outputs.size(); ++i) {
    for_each_tensor(outputs[i], [&](int element, const at::Tensor& tensor) {
      c10::VariableVersion counter = counter_of(tensor);
      const uint32_t version = version_of(counter);
      outputs_.push_back(
          {{static_cast<uint16_t>(i), static_cast<int16_t>(element)},
           id_of(tensor),
           std::move(counter),
           version});
    });
  }
}

bool OpRecord::has_one_thread_count() const {
  return last_thread_count_ == ambient_.num_threads;
}

bool OpRecord::wants_other_thread_count() const {
  return ambient_.num_threads != thread_count() && op_.schema().name().starts_with("aten::");
}

bool OpRecord::left_unchanged(StorageId storage) const {
  return std::all_of(outputs_.begin(), outputs_.end(), [storage](const Output& output) {
    return output.storage != storage || version_of(output.counter) == output.version;
  });
}

bool OpRecord::reads(StorageId storage) const {
  return std::any_of(
      inputs_.begin(), inputs_.end(), [storage](const Input& input) { return input.storage == storage; });
}

bool OpRecord::makes(StorageId storage) const {
  return std::any_of(outputs_.begin(), outputs_.end(), [storage](const Output& output) {
    return output.storage == storage;
  });
}

void OpRecord::check_unchanged(StorageId leaf, const c10::Storage& storage) const {
  for (const Input& input : inputs_) {
    if (input.storage != leaf) {
      continue;
    }
    const uint32_t version = version_of(input.counter);
    TORCH_CHECK(
        version == input.version && sample_of(storage) == input.sample,
        "torchlms: one of the variables needed for gradient computation has been modified by an inplace operation: "
        "argument ",
        op_.schema().arguments()[input.place.index].name(),
        " of ",
        op_.schema().name(),
        ", a [",
        input.view.dtype.name(),
        " ",
        c10::IntArrayRef(input.view.sizes),
        "], whose result was to be recomputed, is at version ",
        version,
        "; expected version ",
        input.version,
        version == input.version ? ", and its bytes are others" : "",
        ". Call backward before it is changed (by the optimizer, say), or use policy=\"swap\".");
  }
}

torch::jit::Stack OpRecord::boxed(const Storages& storages) const {
  torch::jit::Stack stack = args_;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isTensorList() || stack[i].isOptionalTensorList()) {
      stack[i] = emptied(stack[i]); // lists are shared by reference
    }
  }
  for (const Input& input : inputs_) {
    at::Tensor tensor = input.is_scratch ? input.view.scratch() : input.view.over(storages.at(input.storage));
    c10::IValue& arg = stack[input.place.index];
    if (input.place.element < 0) {
      arg = std::move(tensor);
    } else if (arg.isTensorList()) {
      arg.toTensorList().set(input.place.element, std::move(tensor));
    } else {
      arg.toOptionalTensorList().set(input.place.element, std::move(tensor));
    }
  }
  return stack;
}

void OpRecord::replay(Storages& storages) const {
  torch::jit::Stack stack = boxed(storages);
  const c10::impl::ExcludeDispatchKeyGuard below(kKeysAboveKernels);
  const AmbientGuard ambient(ambient_);
  const c10::AutoGradMode as_recorded(true); // backward runs without; kernels ask for it (oneDNN's LSTM)
  op_.callBoxed(stack);
  for (const Output& output : outputs_) {
    const c10::IValue& value = stack[output.place.index];
    const at::Tensor& tensor =
        output.place.element < 0 ? value.toTensor() : value.toListRef()[output.place.element].toTensor();
    storages[output.storage] = tensor.storage();
  }
}

} // namespace torchlms
