// Rules between the fields of `training`, for evaluation and for the learning rate.
#pragma once

#include <vector>

#include "proto/spec/rules.h"

namespace tessera::spec {

// Strategies of evaluation, of checkpoints and of the best of them.
void check_evaluation(const v1::JobSpec& spec, std::vector<Violation>& out);

// What each lr_scheduler_type takes and needs. Source: transformers/optimization.py.
void check_schedule(const v1::Training& training, std::vector<Violation>& out);

}  // namespace tessera::spec
