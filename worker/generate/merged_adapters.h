// Adapters that are part of the weights they adapt, for as long as completions are made: passes
// then run without them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/model/decoder.h"
#include "worker/model/linear.h"
#include "worker/parallel/shard.h"

namespace tessera {

class MergedAdapters {
 public:
  // `units` are the model's, over a group in which this rank is `rank`. All outlive this. No matrix
  // with an adapter is quantized.
  MergedAdapters(DecoderModel& model, const std::vector<ShardedUnit*>& units, int rank);

  // Puts W + scale * B A (with DoRA, rows of their own length; made in float32) in the place of
  // each adapted W in this rank's shards, and keeps what was there. Collective over the group:
  // layers are gathered one at a time. Not twice without restore().
  void merge();
  // Puts that back, to the bit. Nothing where there was no merge().
  void restore();
  // What is kept between the two.
  int64_t kept_bytes() const;

 private:
  // A part of an adapted matrix that lies in this rank's shard.
  struct Part {
    const Linear* linear;
    ShardedUnit* unit;  // of the matrix
    int64_t begin;      // first element, counted in the matrix
    int64_t shard_begin;
    int64_t numel;
    at::Tensor kept = {};  // the shard's values; undefined while they are there

    at::Tensor in_shard() const { return unit->shard().narrow(0, shard_begin, numel); }
  };
  struct AdaptedLayer {
    std::vector<ShardedUnit*> units;
    std::vector<Part> parts;
  };

  static void keep(Part& part);
  static void write_merged(const Part& part);
  void tell_of_change() const;

  std::vector<AdaptedLayer> layers_;
};

}  // namespace tessera
