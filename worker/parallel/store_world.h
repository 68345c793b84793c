// A world whose groups are made over one key-value store.
#pragma once

#include <functional>
#include <memory>

#include "worker/parallel/rendezvous.h"
#include "worker/parallel/world.h"

namespace tessera {

// Makes a group: `store` is its own, `options` have the place in it and its size.
using MakeGroup = std::function<std::unique_ptr<Collectives>(
    const c10::intrusive_ptr<c10d::Store>& store, const RendezvousOptions& options)>;

// Blocks until all ranks have come. Throws NetworkError, as its groups do.
std::unique_ptr<World> make_store_world(const RendezvousOptions& options, MakeGroup make_group);

}  // namespace tessera
