// Ranks that are threads of one process. The last rank to reach an operation carries it out for all
// of them while the others wait, so that no rank's tensors are touched before its call or after its
// wait.
#include <c10/core/GradMode.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>

#include "worker/parallel/collectives_common.h"
#include "worker/parallel/world.h"

namespace tessera {
namespace {

struct Operation {
  explicit Operation(int size) : outputs(size), inputs(size), arrived(size, false) {}

  std::string name;
  std::vector<at::Tensor> outputs, inputs;  // by rank
  std::vector<bool> arrived;                // by rank
  int num_arrived = 0;
  bool done = false;
  std::exception_ptr error;
};

class Group {
 public:
  Group(int size, std::chrono::milliseconds timeout)
      : size_(size), timeout_(timeout), left_(size, false) {}

  int size() const { return size_; }

  using Run = std::function<void(Operation&)>;

  // Rank `rank` comes to its operation number `index`; the last one to come executes `run`.
  std::shared_ptr<Operation> arrive(int rank, int64_t index, const std::string& name,
                                    at::Tensor output, at::Tensor input, const Run& run) {
    std::shared_ptr<Operation> operation;
    {
      std::lock_guard lock(mutex_);
      std::shared_ptr<Operation>& slot = operations_[index];
      if (!slot) slot = std::make_shared<Operation>(size_);
      operation = slot;
      if (operation->name.empty()) operation->name = name;
      TORCH_CHECK(operation->name == name, "rank ", rank, " calls ", name, ", others ",
                  operation->name);
      operation->outputs[rank] = std::move(output);
      operation->inputs[rank] = std::move(input);
      operation->arrived[rank] = true;
      if (++operation->num_arrived < size_) return operation;
      operations_.erase(index);
    }
    try {
      c10::NoGradGuard no_grad;
      run(*operation);
    } catch (...) {
      operation->error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    operation->done = true;
    changed_.notify_all();
    return operation;
  }

  void wait(const Operation& operation) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return operation.done || lost_rank(operation) >= 0; };
    if (!changed_.wait_for(lock, timeout_, over)) {
      throw NetworkError(operation.name + ": not all ranks came within " +
                         std::to_string(timeout_.count()) + " ms");
    }
    if (!operation.done) {
      throw NetworkError(operation.name + ": rank " + std::to_string(lost_rank(operation)) +
                         " is gone");
    }
    if (operation.error) std::rethrow_exception(operation.error);
  }

  void leave(int rank) {
    std::lock_guard lock(mutex_);
    left_[rank] = true;
    changed_.notify_all();
  }

 private:
  // A rank that will not come to this operation any more, or -1.
  int lost_rank(const Operation& operation) const {
    for (int rank = 0; rank < size_; ++rank) {
      if (left_[rank] && !operation.arrived[rank]) return rank;
    }
    return -1;
  }

  const int size_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;                                    // guarded by mutex_
  std::map<int64_t, std::shared_ptr<Operation>> operations_;  // guarded by mutex_; by number
};

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<Group> group, std::shared_ptr<Operation> operation)
      : group_(std::move(group)), operation_(std::move(operation)) {}

  void wait() override { group_->wait(*operation_); }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Operation> operation_;
};

void run_all_gather(Operation& operation) {
  const auto size = static_cast<int64_t>(operation.inputs.size());
  const int64_t numel = operation.inputs[0].numel();
  for (at::Tensor& output : operation.outputs) {
    for (int64_t rank = 0; rank < size; ++rank) {
      at::Tensor part = output.narrow(0, rank * numel, numel);
      if (part.data_ptr() != operation.inputs[rank].data_ptr()) part.copy_(operation.inputs[rank]);
    }
  }
}

void run_reduce_scatter_add(Operation& operation) {
  for (size_t rank = 0; rank < operation.outputs.size(); ++rank) {
    at::Tensor& output = operation.outputs[rank];
    std::vector<at::Tensor> parts;
    for (const at::Tensor& input : operation.inputs) {
      parts.push_back(input.narrow(0, static_cast<int64_t>(rank) * output.numel(), output.numel()));
    }
    add_in_order(output, parts);
  }
}

void run_all_to_all(Operation& operation) {
  const auto size = static_cast<int64_t>(operation.inputs.size());
  const int64_t numel = operation.inputs[0].numel() / size;
  for (int64_t to = 0; to < size; ++to) {
    for (int64_t from = 0; from < size; ++from) {
      operation.outputs[to]
          .narrow(0, from * numel, numel)
          .copy_(operation.inputs[from].narrow(0, to * numel, numel));
    }
  }
}

void run_shift(Operation& operation, int distance) {
  const int size = static_cast<int>(operation.inputs.size());
  for (int rank = 0; rank < size; ++rank) {
    const int from = ShiftPeers(rank, size, distance).from;
    TORCH_CHECK(operation.outputs[rank].numel() == operation.inputs[from].numel(), "rank ", from,
                " sends ", operation.inputs[from].numel(), " elements, rank ", rank, " awaits ",
                operation.outputs[rank].numel());
    operation.outputs[rank].copy_(operation.inputs[from]);
  }
}

void run_all_reduce(Operation& operation) {
  at::Tensor sum = operation.outputs[0].clone();
  add_in_order(sum, {operation.outputs.begin() + 1, operation.outputs.end()});
  for (at::Tensor& output : operation.outputs) output.copy_(sum);
}

class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~ThreadCollectives() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    check_all_gather(output, input, size());
    return start("all_gather", std::move(output), std::move(input), run_all_gather);
  }

  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    check_reduce_scatter(output, input, size());
    return start("reduce_scatter_add", std::move(output), std::move(input), run_reduce_scatter_add);
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, size());
    return start("all_to_all", std::move(output), std::move(input), run_all_to_all);
  }

  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    check_shift(output, input, distance, most);
    return start("shift by " + std::to_string(distance), std::move(output), std::move(input),
                 [=](Operation& operation) { run_shift(operation, distance); });
  }

  void all_reduce_sum(at::Tensor values) override {
    check_all_reduce(values);
    start("all_reduce_sum", std::move(values), {}, run_all_reduce)->wait();
  }

  void barrier() override {
    start("barrier", {}, {}, [](Operation&) {})->wait();
  }

 private:
  std::unique_ptr<Work> start(const std::string& name, at::Tensor output, at::Tensor input,
                              const Group::Run& run) {
    auto operation = group_->arrive(rank_, next_++, name, std::move(output), std::move(input), run);
    return std::make_unique<ThreadWork>(group_, std::move(operation));
  }

  std::shared_ptr<Group> group_;
  const int rank_;
  int64_t next_ = 0;
};

// The groups of all threads' worlds.
class GroupsByName {
 public:
  explicit GroupsByName(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  std::shared_ptr<Group> get(const std::string& name, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Group>& group = groups_[name];
    if (!group) group = std::make_shared<Group>(size, timeout_);
    return group;
  }

 private:
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_;  // guarded by mutex_
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<GroupsByName> groups, int rank, int size)
      : groups_(std::move(groups)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Collectives> make_group(const std::string& name,
                                          const std::vector<int>& ranks) override {
    if (ranks.size() == 1) return make_single_collectives();
    return std::make_unique<ThreadCollectives>(groups_->get(name, static_cast<int>(ranks.size())),
                                               place_in(ranks, rank_));
  }

 private:
  const std::shared_ptr<GroupsByName> groups_;
  const int rank_;
  const int size_;
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_thread_collectives(
    int size, std::chrono::milliseconds timeout) {
  TORCH_CHECK(size >= 1, "a group of ", size);
  auto group = std::make_shared<Group>(size, timeout);
  std::vector<std::unique_ptr<Collectives>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<ThreadCollectives>(group, rank));
  return ranks;
}

std::vector<std::unique_ptr<World>> make_thread_worlds(int size,
                                                       std::chrono::milliseconds timeout) {
  auto groups = std::make_shared<GroupsByName>(timeout);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank)
    worlds.push_back(std::make_unique<ThreadWorld>(groups, rank, size));
  return worlds;
}

}  // namespace tessera
