#include "worker/parallel/store_world.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

#include "worker/parallel/collectives_common.h"

namespace tessera {
namespace {

class StoreWorld final : public World {
 public:
  StoreWorld(const RendezvousOptions& options, MakeGroup make_group)
      : options_(options),
        make_group_(std::move(make_group)),
        store_(or_rendezvous_failure(options, [&] { return make_store(options); })) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::unique_ptr<Collectives> make_group(const std::string& name,
                                          const std::vector<int>& ranks) override {
    if (ranks.size() == 1) return make_single_collectives();
    RendezvousOptions group = options_;
    group.rank = place_in(ranks, options_.rank);
    group.size = static_cast<int>(ranks.size());
    return or_rendezvous_failure(options_, [&] {
      return make_group_(c10::make_intrusive<c10d::PrefixStore>(name, store_), group);
    });
  }

 private:
  const RendezvousOptions options_;
  const MakeGroup make_group_;
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::unique_ptr<World> make_store_world(const RendezvousOptions& options, MakeGroup make_group) {
  return std::make_unique<StoreWorld>(options, std::move(make_group));
}

}  // namespace tessera
