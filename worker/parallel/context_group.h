// What layers need of the ranks that share a stream, over a group of ranks.
#pragma once

#include "worker/model/context.h"
#include "worker/parallel/collectives.h"

namespace tessera {

class ContextGroup final : public ContextExchange {
 public:
  // `group` must outlive this.
  explicit ContextGroup(Collectives& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor part) override;
  std::unique_ptr<Pending> reduce_scatter_add(at::Tensor sum, at::Tensor input) override;
  std::unique_ptr<Pending> shift(at::Tensor received, at::Tensor sent, int distance,
                                 int64_t most) override;
  std::unique_ptr<Pending> all_to_all(at::Tensor received, at::Tensor sent) override;
  void all_reduce_sum(at::Tensor values) override { group_.all_reduce_sum(values); }

 private:
  Collectives& group_;
};

}  // namespace tessera
