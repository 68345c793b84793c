// Ranks of one host: every operation is a copy out of memory that they share.
//
// An operation is cut into chunks of one ring slot. Starting it writes as many as find a free slot;
// completing it writes the others and reads the peers', in turns, so that a ring of any size can
// carry an operation of any size. All ranks complete operations in the order they were started in,
// whichever is waited for: so none waits for what another has put off.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "worker/memory/ledger.h"
#include "worker/parallel/collectives_common.h"
#include "worker/parallel/rendezvous.h"
#include "worker/parallel/shared_ring.h"
#include "worker/parallel/store_world.h"

namespace tessera {
namespace {

// The elements of one chunk of an operation.
struct Chunk {
  int64_t number;  // in the ring
  int64_t begin;   // in a rank's part of the operation
  int64_t numel;
};

class Operation {
 public:
  Operation(SharedRings& rings, int rank, int size) : rings_(rings), rank_(rank), size_(size) {}
  virtual ~Operation() = default;

  // `first`: number of its first chunk; `numel`: of a rank's part; `width`: elements that one
  // element of a part takes in the ring.
  void plan(int64_t first, int64_t numel, int64_t width, int64_t element_bytes) {
    const int64_t most = std::max<int64_t>(1, SharedRings::kSlotBytes / (width * element_bytes));
    for (int64_t begin = 0; begin < numel; begin += most) {
      chunks_.push_back({first++, begin, std::min(most, numel - begin)});
    }
    next_ = first;
  }
  int64_t next_chunk() const { return next_; }

  bool is_written() const { return num_written_ == chunks_.size(); }
  bool is_completed() const { return completed_; }

  // Writes what finds a free slot.
  void write() {
    while (!is_written() && rings_.can_write(chunks_[num_written_].number)) {
      const Chunk& chunk = chunks_[num_written_++];
      fill(chunk, rings_.slot(rank_, chunk.number));
      rings_.publish(chunk.number);
    }
  }

  void complete() {
    for (const Chunk& chunk : chunks_) {
      rings_.wait_until([&] {
        write();
        return is_exchanged(chunk);
      });
      read(chunk);
      rings_.finish(chunk.number);
    }
    completed_ = true;
  }

 protected:
  // Puts this rank's chunk into its slot.
  virtual void fill(const Chunk& chunk, std::byte* slot) = 0;
  // Takes the peers' chunks, all of which are there.
  virtual void read(const Chunk& chunk) = 0;

  SharedRings& rings_;
  const int rank_;
  const int size_;

 private:
  bool is_exchanged(const Chunk& chunk) const {
    for (int rank = 0; rank < size_; ++rank) {
      if (!rings_.is_published(rank, chunk.number)) return false;
    }
    return true;
  }

  std::vector<Chunk> chunks_;
  int64_t next_ = 0;
  size_t num_written_ = 0;
  bool completed_ = false;
};

class AllGather final : public Operation {
 public:
  AllGather(SharedRings& rings, int rank, int size, at::Tensor output, at::Tensor input)
      : Operation(rings, rank, size),
        output_(std::move(output)),
        input_(std::move(input)),
        element_bytes_(static_cast<int64_t>(input_.element_size())) {
    at::Tensor own = output_.narrow(0, rank * input_.numel(), input_.numel());
    if (own.data_ptr() != input_.data_ptr()) {
      std::memcpy(own.data_ptr(), input_.const_data_ptr(), input_.nbytes());
    }
  }

 private:
  void fill(const Chunk& chunk, std::byte* slot) override {
    const auto* from = static_cast<const std::byte*>(input_.const_data_ptr());
    std::memcpy(slot, from + chunk.begin * element_bytes_, chunk.numel * element_bytes_);
  }

  void read(const Chunk& chunk) override {
    auto* to = static_cast<std::byte*>(output_.data_ptr());
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const int64_t begin = (rank * input_.numel() + chunk.begin) * element_bytes_;
      std::memcpy(to + begin, rings_.slot(rank, chunk.number), chunk.numel * element_bytes_);
    }
  }

  at::Tensor output_;
  at::Tensor input_;
  const int64_t element_bytes_;
};

// An operation that has a part of the input for each rank. A slot holds the writer's parts of the
// chunk for each other rank, in rank order.
class ByPart : public Operation {
 protected:
  ByPart(SharedRings& rings, int rank, int size, at::Tensor output, at::Tensor input)
      : Operation(rings, rank, size),
        output_(std::move(output)),
        input_(std::move(input)),
        element_bytes_(static_cast<int64_t>(input_.element_size())) {}

  int64_t part_numel() const { return input_.numel() / size_; }

  void fill(const Chunk& chunk, std::byte* slot) override {
    const auto* from = static_cast<const std::byte*>(input_.const_data_ptr());
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const int64_t begin = (rank * part_numel() + chunk.begin) * element_bytes_;
      std::memcpy(slot, from + begin, chunk.numel * element_bytes_);
      slot += chunk.numel * element_bytes_;
    }
  }

  // What that rank has for this one.
  at::Tensor part_from(int rank, const Chunk& chunk) const {
    if (rank == rank_) return input_.narrow(0, rank * part_numel() + chunk.begin, chunk.numel);
    const int64_t place = rank_ < rank ? rank_ : rank_ - 1;
    std::byte* from = rings_.slot(rank, chunk.number) + place * chunk.numel * element_bytes_;
    return at::from_blob(from, {chunk.numel}, input_.options());
  }

  at::Tensor output_;
  at::Tensor input_;
  const int64_t element_bytes_;
};

class ReduceScatter final : public ByPart {
 public:
  ReduceScatter(SharedRings& rings, int rank, int size, at::Tensor output, at::Tensor input)
      : ByPart(rings, rank, size, std::move(output), std::move(input)) {}

 private:
  void read(const Chunk& chunk) override {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < size_; ++rank) parts.push_back(part_from(rank, chunk));
    add_in_order(output_.narrow(0, chunk.begin, chunk.numel), parts);
  }
};

class AllToAll final : public ByPart {
 public:
  AllToAll(SharedRings& rings, int rank, int size, at::Tensor output, at::Tensor input)
      : ByPart(rings, rank, size, std::move(output), std::move(input)) {}

 private:
  void read(const Chunk& chunk) override {
    for (int rank = 0; rank < size_; ++rank) {
      output_.narrow(0, rank * part_numel() + chunk.begin, chunk.numel)
          .copy_(part_from(rank, chunk));
    }
  }
};

// Chunks are planned for the largest input; of a smaller one the last are short or empty.
class Shift final : public Operation {
 public:
  Shift(SharedRings& rings, int rank, int size, at::Tensor output, at::Tensor input, int distance)
      : Operation(rings, rank, size),
        from_(ShiftPeers(rank, size, distance).from),
        output_(std::move(output)),
        input_(std::move(input)) {}

 private:
  void fill(const Chunk& chunk, std::byte* slot) override {
    const auto* from = static_cast<const std::byte*>(input_.const_data_ptr());
    if (const int64_t bytes = bytes_of(chunk, input_); bytes > 0)
      std::memcpy(slot, from + begin_of(chunk), bytes);
  }

  void read(const Chunk& chunk) override {
    auto* to = static_cast<std::byte*>(output_.data_ptr());
    if (const int64_t bytes = bytes_of(chunk, output_); bytes > 0)
      std::memcpy(to + begin_of(chunk), rings_.slot(from_, chunk.number), bytes);
  }

  int64_t begin_of(const Chunk& chunk) const {
    return chunk.begin * static_cast<int64_t>(input_.element_size());
  }
  static int64_t bytes_of(const Chunk& chunk, const at::Tensor& x) {
    return std::min(chunk.numel, x.numel() - chunk.begin) * static_cast<int64_t>(x.element_size());
  }

  const int from_;
  at::Tensor output_;
  at::Tensor input_;
};

// Started and not completed, in order.
class OperationQueue {
 public:
  // What those before it could not write for want of slots has to go first.
  void start(const std::shared_ptr<Operation>& operation, int64_t numel, int64_t width,
             int64_t element_bytes) {
    if (!operations_.empty() && !operations_.back()->is_written()) complete(*operations_.back());
    operation->plan(next_chunk_, numel, width, element_bytes);
    next_chunk_ = operation->next_chunk();
    operation->write();
    operations_.push_back(operation);
  }

  // Requires that it was started.
  void complete(const Operation& last) {
    const c10::NoGradGuard no_grad;
    while (!last.is_completed()) {
      operations_.front()->complete();
      operations_.pop_front();
    }
  }

 private:
  std::deque<std::shared_ptr<Operation>> operations_;
  int64_t next_chunk_ = 0;
};

class QueuedWork final : public Work {
 public:
  QueuedWork(OperationQueue& queue, std::shared_ptr<Operation> operation)
      : queue_(queue), operation_(std::move(operation)) {}
  void wait() override { queue_.complete(*operation_); }

 private:
  OperationQueue& queue_;
  std::shared_ptr<Operation> operation_;
};

class SharedMemoryCollectives final : public Collectives {
 public:
  SharedMemoryCollectives(std::unique_ptr<SharedRings> rings, int rank, int size)
      : rings_(std::move(rings)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    check_all_gather(output, input, size_);
    const int64_t numel = input.numel();
    const auto bytes = static_cast<int64_t>(input.element_size());
    auto operation = std::make_shared<AllGather>(*rings_, rank_, size_, output, input);
    return start(std::move(operation), numel, 1, bytes);
  }

  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    check_reduce_scatter(output, input, size_);
    const int64_t numel = output.numel();
    const auto bytes = static_cast<int64_t>(input.element_size());
    auto operation = std::make_shared<ReduceScatter>(*rings_, rank_, size_, output, input);
    return start(std::move(operation), numel, size_ - 1, bytes);
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, size_);
    const int64_t numel = input.numel() / size_;
    const auto bytes = static_cast<int64_t>(input.element_size());
    auto operation = std::make_shared<AllToAll>(*rings_, rank_, size_, output, input);
    return start(std::move(operation), numel, size_ - 1, bytes);
  }

  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    check_shift(output, input, distance, most);
    const auto bytes = static_cast<int64_t>(input.element_size());
    auto operation = std::make_shared<Shift>(*rings_, rank_, size_, output, input, distance);
    return start(std::move(operation), most, 1, bytes);
  }

  void all_reduce_sum(at::Tensor values) override {
    check_all_reduce(values);
    c10::NoGradGuard no_grad;
    at::Tensor flat = values.view({-1});
    OwnerScope owner(Owner::kCommunication);
    at::Tensor gathered =
        at::empty({size_ * std::min(kSharedMemoryReduceChunk, flat.numel())}, values.options());
    for (int64_t begin = 0; begin < flat.numel(); begin += kSharedMemoryReduceChunk) {
      const int64_t numel = std::min(kSharedMemoryReduceChunk, flat.numel() - begin);
      at::Tensor chunk = flat.narrow(0, begin, numel);
      at::Tensor by_rank = gathered.narrow(0, 0, size_ * numel);
      all_gather(by_rank, chunk)->wait();
      std::vector<at::Tensor> parts = by_rank.chunk(size_);
      chunk.copy_(parts[0]);
      add_in_order(chunk, {parts.begin() + 1, parts.end()});
    }
  }

  void barrier() override { all_reduce_sum(at::zeros({1}, at::kLong)); }

 private:
  std::unique_ptr<Work> start(std::shared_ptr<Operation> operation, int64_t numel, int64_t width,
                              int64_t element_bytes) {
    queue_.start(operation, numel, width, element_bytes);
    return std::make_unique<QueuedWork>(queue_, std::move(operation));
  }

  const std::unique_ptr<SharedRings> rings_;
  const int rank_;
  const int size_;
  OperationQueue queue_;
};

std::vector<std::string> exchange(c10d::Store& store, const RendezvousOptions& options,
                                  const std::string& name, const std::string& own) {
  store.set(name + std::to_string(options.rank), own);
  std::vector<std::string> all;
  for (int rank = 0; rank < options.size; ++rank) {
    all.push_back(store.get_to_str(name + std::to_string(rank)));
  }
  return all;
}

// Null: the ranks do not all share memory; all of them come to the same answer.
std::unique_ptr<SharedRings> open_rings(c10d::Store& store, const RendezvousOptions& options) {
  std::unique_ptr<SharedRings> rings;
  std::string address;
  try {
    rings = std::make_unique<SharedRings>(options.rank, options.size, options.timeout);
    address = rings->address();
  } catch (const std::exception&) {
    rings.reset();
  }
  const auto addresses = exchange(store, options, "shared-ring-address/", address);
  try {
    if (rings) rings->open_peers(addresses);
  } catch (const std::exception&) {
    rings.reset();
  }
  for (const std::string& opened :
       exchange(store, options, "shared-ring-opened/", rings ? "yes" : "no")) {
    if (opened != "yes") return nullptr;
  }
  return rings;
}

}  // namespace

std::unique_ptr<Collectives> make_cpu_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const RendezvousOptions& options) {
  std::unique_ptr<SharedRings> rings = open_rings(*store, options);
  if (!rings) return make_gloo_collectives(store, options);
  auto group =
      std::make_unique<SharedMemoryCollectives>(std::move(rings), options.rank, options.size);
  group->barrier();  // rank 0 serves the store until all have read it
  return group;
}

std::unique_ptr<Collectives> make_cpu_collectives(const RendezvousOptions& options) {
  if (options.size == 1) return make_single_collectives();
  return or_rendezvous_failure(options,
                               [&] { return make_cpu_collectives(make_store(options), options); });
}

std::unique_ptr<World> make_cpu_world(const RendezvousOptions& options) {
  return make_store_world(
      options, [](const c10::intrusive_ptr<c10d::Store>& store, const RendezvousOptions& group) {
        return make_cpu_collectives(store, group);
      });
}

}  // namespace tessera
