// Rules that relate fields to each other, or that a field's options cannot state.
#pragma once

#include <vector>

#include "proto/spec/rules.h"

namespace tessera::spec {

// Gives parallelism.dp_shard_size, where absent, what the other axes leave of num_processes;
// nothing where they do not divide it.
void fill_mesh(v1::Parallelism& mesh);

// Gives training.learning_rate, where absent, the default of the method.
void fill_learning_rate(v1::JobSpec& spec);

// Appends every broken relation. A field that is absent is not looked at.
void validate_relations(const v1::JobSpec& spec, std::vector<Violation>& out);

}  // namespace tessera::spec
