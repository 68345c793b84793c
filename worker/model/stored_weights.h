// Where a model's weights lie in the files of a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "worker/model/decoder.h"
#include "worker/model/safetensors.h"

namespace tessera {

// The part of the files that holds `parameter`: the tensor of its name, or the first of
// also_stored_as that is there. Throws UserError("model.path", ...) where there is none, or its
// shape is another.
StoredPart find_stored(const Parameter& parameter, const WeightFiles& weights);

// Whether `parameter` begins with values of its own (fill_fresh), and not with the files'. Throws
// UserError("model.path", ...) where these have its name in another shape.
bool is_new(const Parameter& parameter, const WeightFiles& weights);

// Of a classifier whose files are those of none: the names of what begins with drawn values.
std::vector<std::string> new_scores(DecoderModel& model, const WeightFiles& weights);

// All parameters of the model: the embedding's, each block's, the head's.
std::vector<const Parameter*> all_parameters(DecoderModel& model);

// Their elements.
struct ParameterCounts {
  int64_t all = 0;
  int64_t stored = 0;  // in the model's files; of the others a run makes the first values
  int64_t trainable = 0;

  ParameterCounts& operator+=(const ParameterCounts& other) {
    all += other.all;
    stored += other.stored;
    trainable += other.trainable;
    return *this;
  }
};
ParameterCounts count_parameters(DecoderModel& model);

// Throws UserError("model.path", ...) naming the first parameter of `model` that the files lack or
// hold in another shape, and where they hold an output matrix that differs from the embedding it
// is tied to. Returns the names of tensors that the model has no use for.
std::vector<std::string> check_weights(DecoderModel& model, const WeightFiles& weights);

}  // namespace tessera
