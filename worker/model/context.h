// What layers need of the other ranks that have parts of the same stream (context parallelism).
// Implemented over a group of ranks in worker/parallel/context_group.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "worker/batch.h"

namespace tessera {

// Like Collectives, to whose rules all calls keep: made in one order on all ranks, with tensors
// that are 1-D and contiguous and stay untouched until wait() returns.
class ContextExchange {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
    // Blocks until the output is there. Call once.
    virtual void wait() = 0;
  };

  virtual ~ContextExchange() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // output [size * n], part [n], same dtype: rank r's part at output[r * n, (r + 1) * n).
  virtual std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor part) = 0;
  // sum [n] float32, input [size * n] of any floating dtype: sum += the sum over ranks of this
  // rank's part of their inputs.
  virtual std::unique_ptr<Pending> reduce_scatter_add(at::Tensor sum, at::Tensor input) = 0;
  // `sent` goes to rank + distance, `received` comes from rank - distance, both modulo size: as
  // Collectives::shift, of at most `most` elements.
  virtual std::unique_ptr<Pending> shift(at::Tensor received, at::Tensor sent, int distance,
                                         int64_t most) = 0;
  // Both [size * n], same dtype: part r of `sent` goes to rank r, whose part for this one comes to
  // part r of `received`.
  virtual std::unique_ptr<Pending> all_to_all(at::Tensor received, at::Tensor sent) = 0;
  // In place, blocking. float32, float64 or int64.
  virtual void all_reduce_sum(at::Tensor values) = 0;
};

// The sum over the ranks that share the stream of what each has of `x`, as of a sum over the tokens
// of each document; x itself where nobody shares it. float32 or float64 of any shape, the same on
// all ranks. The gradient passes through: every rank computes the same loss from the sum, and the
// part of it that comes from its own tokens is the gradient with respect to its own x.
at::Tensor sum_over_context(const at::Tensor& x, const Documents& documents);

}  // namespace tessera
