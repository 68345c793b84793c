// Rules of methods that train on completions made for them: by the model, or recorded.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/spec/rules.h"

namespace tessera::spec {

// How completions are made and gone through, whatever the method. Of a method that makes none, and
// of pairs: a row is made at a time, and gone through once.
struct GenerationPlan {
  int64_t rows = 1;                  // that are made at once, over all data-parallel ranks
  int64_t num_generations = 1;       // completions of a prompt
  int64_t num_passes = 1;            // over the rows, before others are made
  int64_t steps_per_generation = 1;  // microbatches of a pass
  bool is_whole = false;             // what is said of them is said of all of them together
};
// Of a spec with defaults filled in, like the next.
GenerationPlan generation_plan(const v1::JobSpec& spec);

// Whether the method trains on completions of the model's own that are judged.
bool takes_completions(const v1::Method& method);
// Whether models write completions of the documents of data.train, or data.mixture: with
// method.gkd the student, or the teacher.
bool student_writes(const v1::JobSpec& spec);
bool teacher_writes(const v1::JobSpec& spec);
// Whether the job makes completions itself: they do, or data.train holds prompts.
bool makes_completions(const v1::JobSpec& spec);

// Whether it makes completions of held-out prompts, too.
bool evaluates_completions(const v1::JobSpec& spec);
// One of the two.
bool makes_completions(const v1::JobSpec& spec, bool held_out);
// The job that has for its steps what an evaluation of the job has: rows of a microbatch, which are
// made at once and gone through once, and completions of a prompt. Requires
// evaluates_completions().
v1::JobSpec evaluation_job(v1::JobSpec spec);

// What a step takes: what training says, but with method.ppo one of the mini-batches that it deals
// the completions to which training's rows are.
struct StepPlan {
  int64_t batch_rows = 1;  // of a microbatch of a rank, or with split_batches of all of them
  int64_t num_microbatches = 1;
};
StepPlan step_plan(const v1::JobSpec& spec);

// Steps that share a learning rate, the schedule's at the first of them: with method.ppo all on
// completions that were made at once, as TRL has it; else 1.
int64_t steps_of_rate(const v1::JobSpec& spec);

// Sources: trl/trainer/grpo_config.py and rloo_config.py.
void check_online_relations(const v1::JobSpec& spec, std::vector<Violation>& out);

}  // namespace tessera::spec
