// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>
#include <memory>

#include "trace/types.h"

namespace c10 {
struct IValue;
} // namespace c10

namespace torchlms {

// Names for headers: op_record.h and purity.h bring PyTorch's dispatcher, which takes seconds to compile.
class OpRecord;
struct OperatorTraits;
using OpRecordPtr = std::shared_ptr<const OpRecord>;

// The bytes that a replay reads and makes.
using Storages = ska::flat_hash_map<StorageId, c10::Storage>;

} // namespace torchlms
