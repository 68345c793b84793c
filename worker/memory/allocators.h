// The allocators that a ledger puts in front of LibTorch's. Each remembers with a block what its
// allocation was charged to, so that a free is charged back right whatever thread and scope it
// happens in.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>

#include "worker/memory/ledger.h"

namespace tessera {

// Aligned to 64 bytes. Throws MemoryError at the ledger's limit, and where the machine has no room.
std::unique_ptr<c10::Allocator> make_cpu_allocator(MemoryLedger& ledger);

// Blocks of meta tensors: charged as the device that they stand for would give them
// (worker/kernels/stand_in.h; in the host space as asked for), with no memory behind them.
std::unique_ptr<c10::Allocator> make_meta_allocator(MemoryLedger& ledger);

// Blocks of `inner`, charged as well; `inner` must live for ever.
std::unique_ptr<c10::Allocator> make_charging_allocator(MemoryLedger& ledger,
                                                        c10::Allocator& inner);

// Memory of this process that no allocator gave, charged by the ledger in front of the CPU's while
// it is held, if there is one. `data` must outlive that.
c10::DataPtr charge_mapped(void* data, int64_t bytes);

}  // namespace tessera
