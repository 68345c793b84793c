// Communication within one group of ranks: one axis of the mesh, or all of it.
//
// Backends: a single rank (the identity), threads of one process (tests), shared memory (CPU, one
// host), Gloo (CPU, several), NCCL (CUDA).
// Sums are made in rank order in float32 (all_reduce: in the values' type), so CPU backends agree
// to the bit; NCCL sums float32 in an order of its own. Calls must be made in the same order on
// every rank of a group. Every wait has the timeout given when the group was made; a lost peer or a
// timeout throws NetworkError. Not thread safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera {

class NetworkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An operation under way. Its tensors must live, and stay untouched, until wait() returns.
class Work {
 public:
  virtual ~Work() = default;
  // Blocks until the output is there (on CUDA: until the current stream is ordered after it). Call
  // once.
  virtual void wait() = 0;
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // output [size * n], input [n], 1-D contiguous, same dtype: rank r's input at output[r * n, (r +
  // 1) * n). `input` may be that very part of `output`.
  virtual std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) = 0;

  // output [n] float32, input [size * n] of any floating dtype: output += the sum over ranks of
  // this rank's part of their inputs.
  virtual std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) = 0;

  // output and input [size * n], 1-D contiguous, same dtype, apart: this rank's part of rank r's
  // input at output[r * n, (r + 1) * n).
  virtual std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) = 0;

  // Sends `input` to rank + distance and receives `output` from rank - distance (both modulo size:
  // 1 goes round a ring). 1-D contiguous, same dtype, apart. What ranks send may differ in size,
  // and be nothing: `output` is as large as what its sender sends. `most` is the same on every
  // rank: no input has more elements.
  virtual std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                                      int64_t most) = 0;

  // In place, blocking. float32, float64 or int64.
  virtual void all_reduce_sum(at::Tensor values) = 0;

  virtual void barrier() = 0;
};

// The group of one rank.
std::unique_ptr<Collectives> make_single_collectives();

// One object a thread; `size` threads must make the same calls. A thread that destroys its object
// is, to the others, a lost peer.
std::vector<std::unique_ptr<Collectives>> make_thread_collectives(
    int size, std::chrono::milliseconds timeout = std::chrono::minutes(1));

struct RendezvousOptions {
  std::string address = "127.0.0.1";
  int port = 0;
  int listen_fd = 0;  // rank 0: an inherited listening socket for `port`; 0: open one
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
};

// Over shared memory where all ranks are processes of one user on one host, else over Gloo. Blocks
// until all ranks have come, or throws NetworkError.
std::unique_ptr<Collectives> make_cpu_collectives(const RendezvousOptions& options);
// Over Gloo wherever the ranks are.
std::unique_ptr<Collectives> make_gloo_collectives(const RendezvousOptions& options);

// One rank of a group whose others are not there, on tensors without data: what a rehearsal runs
// with. It allocates what the backend would, and counts what it would receive
// (worker/kernels/work.h). Not that of a single rank, which is real.
struct FakeGroup {
  enum class Backend { kSharedMemory, kGloo, kNccl };
  int rank = 0;
  int size = 1;
  Backend backend = Backend::kSharedMemory;
};
std::unique_ptr<Collectives> make_fake_collectives(const FakeGroup& group);

}  // namespace tessera
