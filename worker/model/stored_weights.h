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

// All parameters of the model: the embedding's, each block's, the head's.
std::vector<const Parameter*> all_parameters(DecoderModel& model);

// Throws UserError("model.path", ...) naming the first parameter of `model` that the files lack or
// hold in another shape, and where they hold an output matrix that differs from the embedding it
// is tied to. Returns the names of tensors that the model has no use for.
std::vector<std::string> check_weights(DecoderModel& model, const WeightFiles& weights);

}  // namespace tessera
