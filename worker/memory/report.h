// What a ledger holds, in messages.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include "tessera/v1/telemetry.pb.h"
#include "worker/memory/ledger.h"

namespace tessera {

// One entry an owner that ever had a byte.
google::protobuf::RepeatedPtrField<v1::OwnerBytes> owner_bytes(const MemoryTotals& totals);

// One entry a phase in which anything was allocated.
google::protobuf::RepeatedPtrField<v1::PhaseBytes> phase_bytes(const MemoryTotals& totals);

// Both spaces as they are, with the process's own memory; all but rank, step and device allocator.
v1::MemorySnapshot memory_snapshot(const MemoryLedger& ledger);

// The peaks so far; all but rank and step.
v1::MemoryPeak memory_peak(const MemoryLedger& ledger);

// All but what memory_snapshot() leaves out.
v1::OutOfMemory out_of_memory(const MemoryRefusal& refusal);

}  // namespace tessera
