// What a job spec says about its documents. Links no LibTorch.
#pragma once

#include <filesystem>

#include "tessera/v1/job.pb.h"
#include "worker/data/dataset.h"

namespace tessera {

// How the spec wants its training, or its held-out, documents read. `vocab_size`: of the model; 0:
// ids are not checked.
DatasetOptions dataset_options(const v1::JobSpec& spec, bool held_out, int64_t vocab_size);

// Directory of the tokenizer: model.tokenizer, else model.path.
std::filesystem::path tokenizer_directory(const v1::JobSpec& spec);

}  // namespace tessera
