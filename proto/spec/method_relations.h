// Rules between the fields of the methods, and of methods with the rest of a job.
#pragma once

#include <vector>

#include "proto/spec/rules.h"

namespace tessera::spec {

// Sources: the checks in the constructors of trl/trainer's trainers.
void check_method_relations(const v1::JobSpec& spec, std::vector<Violation>& out);

}  // namespace tessera::spec
