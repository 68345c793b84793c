// Reads what a rank is told to do.
#pragma once

#include <filesystem>
#include <memory>

#include "tessera/v1/generate.pb.h"
#include "tessera/v1/plan.pb.h"
#include "tessera/v1/trainer.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/job_data.h"
#include "worker/data/live_rollouts.h"
#include "worker/data/loader.h"
#include "worker/model/config.h"

namespace tessera {

// A binary TrainerInput, or ProtoJSON where the name ends in ".json" (its relative paths are
// relative to the file). Defaults are filled in. Throws UserError: unreadable, malformed, or a rule
// of the spec broken.
v1::TrainerInput read_trainer_input(const std::filesystem::path& path);
// Likewise a PlanRequest, as it is. Throws UserError: unreadable or malformed.
v1::PlanRequest read_plan_request(const std::filesystem::path& path);
// Likewise a GenerateRequest.
v1::GenerateRequest read_generate_request(const std::filesystem::path& path);

// Reads the training, or the held-out, documents. One rank of a machine makes them, on
// resources.cpu_threads threads or else all cores; the others wait. Throws UserError.
std::unique_ptr<Dataset> read_documents(const v1::JobSpec& spec, bool held_out, int64_t vocab_size,
                                        const Reports& reports);

// The same of a job that makes its completions itself.
std::unique_ptr<LiveRollouts> read_prompts(const v1::JobSpec& spec, bool held_out,
                                           int64_t vocab_size, const Reports& reports);

// Whether documents, or prompts, of training come in random order.
bool shuffles_rows(const v1::JobSpec& spec);

// How the spec wants those rows dealt to ranks.
LoaderOptions loader_options(const v1::JobSpec& spec, bool held_out, const ModelConfig& config,
                             int rank, int world_size);

// What a reward model takes for padding at the end of a document, as TRL: the tokenizer's
// pad_token, else its eos_token; without a tokenizer config.json's. -1: none. Throws UserError.
int64_t score_padding(const v1::JobSpec& spec, const ModelConfig& config);

// Directory of the event files: training.logging_dir, else output_dir/runs/JOB_ID.
std::filesystem::path logging_directory(const v1::TrainerInput& input);

}  // namespace tessera
