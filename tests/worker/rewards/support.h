// Completions to judge, and jobs that do.
#pragma once

#include <string>
#include <vector>

#include "proto/spec/rules.h"
#include "worker/rewards/judge.h"

namespace tessera {

inline JudgedCompletion completion_of(const std::string& text, std::string_view record = "{}") {
  return {.prompt = "?", .completion = text, .record = record};
}

// A job of GRPO with one reward, named "it", of which `set` makes something.
inline v1::JobSpec job_of(auto set) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_grpo()->set_max_completion_length(20);
  v1::RewardFunc& func = *spec.add_reward_funcs();
  func.set_name("it");
  set(func);
  spec::fill_defaults(spec);
  return spec;
}

// What the job's first reward gives.
inline float score(const v1::JobSpec& spec, const JudgedCompletion& completion) {
  Judges judges(spec, {.job_id = "job"});
  return judges.judge({&completion, 1}, 0).at(0);
}

}  // namespace tessera
