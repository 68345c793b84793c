// What a rank has of the microbatches that its cp axis shares.
#pragma once

#include <memory>
#include <optional>

#include "tessera/v1/job.pb.h"
#include "worker/batch.h"
#include "worker/model/config.h"
#include "worker/model/context_strategy.h"
#include "worker/parallel/context_group.h"
#include "worker/parallel/mesh.h"

namespace tessera {

MeshShape mesh_shape(const v1::Parallelism& parallelism);

// Throws UserError: no way to deal the model's heads to the ranks of the cp axis, as the job wants
// it.
void check_strategy(const v1::Parallelism& parallelism, const ModelConfig& config);

class StreamShare {
 public:
  // The mesh's groups must outlive this, and this the batches. Throws as check_strategy().
  StreamShare(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh);

  // Another model runs on the same streams. Throws as check_strategy(). Call before the rest.
  void share_with(const ModelConfig& other);

  // Of a batch that the loader deals to this rank's place in the data: with cp_size 1 all of it.
  Batch of(const Batch& whole) const;
  // This rank's place in a stream of so many tokens, but for the length of its chunks.
  StreamPart place(int64_t stream_tokens) const;

 private:
  const v1::Parallelism& parallelism_;
  std::unique_ptr<ContextGroup> exchange_;
  // Without the strategy where that depends on the stream.
  StreamPart place_;
  std::optional<AttentionShape> shape_;  // where it does
  int64_t pad_token_id_;
};

}  // namespace tessera
