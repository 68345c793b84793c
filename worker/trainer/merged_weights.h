// The whole model with its adapters merged into its weights, for the final directory.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "worker/model/linear.h"
#include "worker/trainer/plan.h"

namespace tessera {

// W + scale * B A in place of each adapted W (with DoRA, rows of their own length), computed in
// float32 from the values that forward uses; all other weights as they are. One layer at a time is
// gathered.
class MergedWeights {
 public:
  // `trainable` must outlive this, and no training may go on meanwhile.
  MergedWeights(TrainableModel& trainable, const Collectives& group);
  ~MergedWeights();
  MergedWeights(const MergedWeights&) = delete;
  MergedWeights& operator=(const MergedWeights&) = delete;

  // One a layer, of the parameters that the model has without adapters.
  const std::vector<FlatLayout>& layouts() const { return layouts_; }
  // Collective: gathers a layer, in place of the one before.
  void enter(size_t layout);
  // Elements [begin, begin + numel) of this rank's shard of the layout that was entered: float32.
  at::Tensor read(int64_t begin, int64_t numel) const;

 private:
  struct Layer {
    std::vector<ShardedUnit*> units;
    std::map<std::string, const Parameter*> parameters;
    std::map<std::string, const Linear*> adapted;  // by the name of its weight
  };
  void leave();
  at::Tensor values(const FlatEntry& entry, int64_t begin, int64_t numel) const;

  int rank_;
  std::vector<Layer> layers_;
  std::vector<FlatLayout> layouts_;
  const Layer* entered_ = nullptr;
  const FlatLayout* layout_ = nullptr;
};

}  // namespace tessera
