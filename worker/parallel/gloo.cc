// Gloo on the CPU: the process group of LibTorch, used for its connections alone.
//
// Everything is built from its sends and receives: they move bytes straight from and to our
// tensors, on Gloo's own thread, where its collectives copy through buffers of their own as large
// as the result.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/memory/ledger.h"
#include "worker/parallel/collectives_common.h"
#include "worker/parallel/rendezvous.h"
#include "worker/parallel/store_world.h"

namespace tessera {
namespace {

using PendingWork = c10::intrusive_ptr<c10d::Work>;

[[noreturn]] void throw_network_error(const char* operation, const std::exception& error) {
  throw NetworkError(std::string(operation) + ": " + describe(error));
}

// The sends and receives of one operation.
class Exchange {
 public:
  Exchange(c10d::ProcessGroupGloo& group, const char* operation, int tag)
      : group_(group), operation_(operation), tag_(tag) {}

  void receive(at::Tensor part, int rank) {
    if (part.numel() > 0) start([&](auto& parts) { return group_.recv(parts, rank, tag_); }, part);
  }

  void send(at::Tensor part, int rank) {
    if (part.numel() > 0) start([&](auto& parts) { return group_.send(parts, rank, tag_); }, part);
  }

  void wait() {
    try {
      for (const PendingWork& work : pending_) work->wait();
    } catch (const std::exception& error) {
      throw_network_error(operation_, error);
    }
    pending_.clear();
  }

 private:
  template <typename Call>
  void start(const Call& call, at::Tensor part) {
    std::vector<at::Tensor> parts{std::move(part)};
    try {
      pending_.push_back(call(parts));
    } catch (const std::exception& error) {
      throw_network_error(operation_, error);
    }
  }

  c10d::ProcessGroupGloo& group_;
  const char* operation_;
  const int tag_;
  std::vector<PendingWork> pending_;
};

class ExchangeWork final : public Work {
 public:
  explicit ExchangeWork(Exchange exchange) : exchange_(std::move(exchange)) {}
  void wait() override { exchange_.wait(); }

 private:
  Exchange exchange_;
};

class ReduceScatterWork final : public Work {
 public:
  ReduceScatterWork(Exchange exchange, at::Tensor output, std::vector<at::Tensor> parts)
      : exchange_(std::move(exchange)), output_(std::move(output)), parts_(std::move(parts)) {}

  void wait() override {
    exchange_.wait();
    add_in_order(output_, parts_);
    parts_.clear();
  }

 private:
  Exchange exchange_;
  at::Tensor output_;
  std::vector<at::Tensor> parts_;  // by rank; dropped after the exchange that fills them
};

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    check_all_gather(output, input, size_);
    const int64_t numel = input.numel();
    Exchange exchange = begin("all_gather");
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      exchange.receive(output.narrow(0, from * numel, numel), from);
      exchange.send(input, (rank_ + step) % size_);
    }
    at::Tensor own = output.narrow(0, rank_ * numel, numel);
    c10::NoGradGuard no_grad;
    if (own.data_ptr() != input.data_ptr()) own.copy_(input);
    return std::make_unique<ExchangeWork>(std::move(exchange));
  }

  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    check_reduce_scatter(output, input, size_);
    const int64_t numel = output.numel();
    std::vector<at::Tensor> parts(size_);
    parts[rank_] = input.narrow(0, rank_ * numel, numel);
    Exchange exchange = begin("reduce_scatter_add");
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      const int to = (rank_ + step) % size_;
      OwnerScope owner(Owner::kCommunication);
      parts[from] = at::empty({numel}, input.options());
      exchange.receive(parts[from], from);
      exchange.send(input.narrow(0, to * numel, numel), to);
    }
    return std::make_unique<ReduceScatterWork>(std::move(exchange), std::move(output),
                                               std::move(parts));
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, size_);
    const int64_t numel = input.numel() / size_;
    Exchange exchange = begin("all_to_all");
    for (int step = 1; step < size_; ++step) {
      const ShiftPeers peers(rank_, size_, step);
      exchange.receive(output.narrow(0, peers.from * numel, numel), peers.from);
      exchange.send(input.narrow(0, peers.to * numel, numel), peers.to);
    }
    const c10::NoGradGuard no_grad;
    output.narrow(0, rank_ * numel, numel).copy_(input.narrow(0, rank_ * numel, numel));
    return std::make_unique<ExchangeWork>(std::move(exchange));
  }

  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    check_shift(output, input, distance, most);
    Exchange exchange = begin("shift");
    const ShiftPeers peers(rank_, size_, distance);
    if (peers.to == rank_) {
      const c10::NoGradGuard no_grad;
      output.copy_(input);
    } else {
      exchange.receive(output, peers.from);
      exchange.send(input, peers.to);
    }
    return std::make_unique<ExchangeWork>(std::move(exchange));
  }

  void all_reduce_sum(at::Tensor values) override {
    check_all_reduce(values);
    c10::NoGradGuard no_grad;
    at::Tensor flat = values.view({-1});
    OwnerScope owner(Owner::kCommunication);
    at::Tensor gathered =
        at::empty({size_ * std::min(kGlooReduceChunk, flat.numel())}, values.options());
    for (int64_t begin = 0; begin < flat.numel(); begin += kGlooReduceChunk) {
      const int64_t numel = std::min(kGlooReduceChunk, flat.numel() - begin);
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
  // Every rank numbers its operations alike; the number keeps their messages apart.
  Exchange begin(const char* operation) {
    next_tag_ = (next_tag_ + 1) & 0x3fffffff;
    return Exchange(*group_, operation, next_tag_);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const int rank_;
  const int size_;
  int next_tag_ = 0;
};

}  // namespace

std::unique_ptr<Collectives> make_gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const RendezvousOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->threads = 1;  // of collectives, which are not used
  gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(local_address_towards(options))};
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo);
  return std::make_unique<GlooCollectives>(std::move(group), options.rank, options.size);
}

std::unique_ptr<Collectives> make_gloo_collectives(const RendezvousOptions& options) {
  if (options.size == 1) return make_single_collectives();
  return or_rendezvous_failure(options,
                               [&] { return make_gloo_collectives(make_store(options), options); });
}

std::unique_ptr<World> make_gloo_world(const RendezvousOptions& options) {
  return make_store_world(
      options, [](const c10::intrusive_ptr<c10d::Store>& store, const RendezvousOptions& group) {
        return make_gloo_collectives(store, group);
      });
}

}  // namespace tessera
