// How much of each row a rehearsal needs to know.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/config.h"
#include "worker/trainer/judged_lengths.h"

namespace tessera {

struct RowSize {
  int32_t num_tokens, num_labels, longest;  // the last: of its documents
  int32_t num_mismatched;                   // tokens
};

// Reads the sizes of rows once, which then are quick to get.
class RowSizes final : public Dataset {
 public:
  // `is_assumed`: nobody has read these rows; none of the job's has more.
  RowSizes(std::unique_ptr<Dataset> inner, const Reports& reports, bool is_assumed);

  bool is_assumed() const { return is_assumed_; }
  // What reward models will read of the completions of a step, or of an evaluation; empty where the
  // policy's own lengths have to do.
  const std::vector<JudgedLengths>& judged() const { return judged_; }
  void set_judged(std::vector<JudgedLengths> judged) { judged_ = std::move(judged); }
  const RowSize& size_of(int64_t index) const { return sizes_[index]; }

  int64_t size() const override { return std::ssize(sizes_); }
  Row row(int64_t index) const override { return inner_->row(index); }
  int64_t num_tokens(int64_t index) const override { return sizes_[index].num_tokens; }
  int64_t num_labels(int64_t index) const override { return sizes_[index].num_labels; }
  std::vector<int32_t> lengths(int64_t index) const override { return inner_->lengths(index); }
  bool has_values() const override { return inner_->has_values(); }
  int documents_per_row() const override { return inner_->documents_per_row(); }
  const Dataset* mismatched() const override { return inner_->mismatched(); }
  const RolloutDataset* rollouts() const override { return inner_->rollouts(); }
  std::string key() const override { return inner_->key(); }

 private:
  std::unique_ptr<Dataset> inner_;
  std::vector<RowSize> sizes_;
  const bool is_assumed_;
  std::vector<JudgedLengths> judged_;
};

// Of the job's training, or held-out, documents. Completions that are made in training are taken to
// be as long as may be; where their prompts cannot be read, or recorded completions, prompts leave
// completions room and no more. Null: the documents cannot be read, of a method that trains on
// none.
std::unique_ptr<RowSizes> read_row_sizes(const v1::JobSpec& spec, bool held_out,
                                         const ModelConfig& config, const Reports& reports);

}  // namespace tessera
