#include "worker/parallel/context_group.h"

#include <utility>

namespace tessera {
namespace {

class PendingWork final : public ContextExchange::Pending {
 public:
  explicit PendingWork(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  std::unique_ptr<Work> work_;
};

}  // namespace

std::unique_ptr<ContextExchange::Pending> ContextGroup::all_gather(at::Tensor output,
                                                                   at::Tensor part) {
  return std::make_unique<PendingWork>(group_.all_gather(std::move(output), std::move(part)));
}

std::unique_ptr<ContextExchange::Pending> ContextGroup::reduce_scatter_add(at::Tensor sum,
                                                                           at::Tensor input) {
  return std::make_unique<PendingWork>(group_.reduce_scatter_add(std::move(sum), std::move(input)));
}

std::unique_ptr<ContextExchange::Pending> ContextGroup::shift(at::Tensor received, at::Tensor sent,
                                                              int distance, int64_t most) {
  return std::make_unique<PendingWork>(
      group_.shift(std::move(received), std::move(sent), distance, most));
}

std::unique_ptr<ContextExchange::Pending> ContextGroup::all_to_all(at::Tensor received,
                                                                   at::Tensor sent) {
  return std::make_unique<PendingWork>(group_.all_to_all(std::move(received), std::move(sent)));
}

}  // namespace tessera
