// Rules of reward_funcs: what judges the completions that a method makes.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/spec/rules.h"

namespace tessera::spec {

// The most tokens of a completion that the method makes. 0: it makes none.
int64_t longest_completion(const v1::Method& method);

// What a length reward counts as its longest completion, its own field or the method's.
int64_t longest_completion(const v1::LengthReward& reward, const v1::Method& method);

void check_reward_relations(const v1::JobSpec& spec, std::vector<Violation>& out);

}  // namespace tessera::spec
