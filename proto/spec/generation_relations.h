// Rules of how completions are made: of the section `generation`.
#pragma once

#include <vector>

#include "proto/spec/rules.h"

namespace tessera::spec {

// Of a spec with defaults filled in. Where the job makes no completions, only these may be given.
void check_generation_relations(const v1::JobSpec& spec, std::vector<Violation>& out);

}  // namespace tessera::spec
