#include "worker/trainer/reference_pass.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/objectives/sequences.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

double tail_alpha(const v1::Method& method) {
  return method.dpo().has_ld_alpha() ? method.dpo().ld_alpha() : 1;
}

ReferenceModel reference_model(const v1::JobSpec& spec) {
  const ReferenceOptions options = reference_options(spec.method());
  ReferenceModel model;
  if (options.path.empty()) {
    model.weights = spec.model().path();
    model.adapter = spec.peft().adapter_path();
  } else {
    model.weights = options.path;
    model.field = options.field;
  }
  model.compute = spec.model().dtype() + " " + spec.peft().quantization() + " " +
                  std::to_string(spec.peft().use_bnb_nested_quant()) + " " +
                  std::to_string(tail_alpha(spec.method()));
  return model;
}

}  // namespace

LoaderOptions scoring_loader_options(const v1::JobSpec& spec, bool held_out,
                                     const ModelConfig& config, int rank, int world_size) {
  LoaderOptions options = loader_options(spec, held_out, config, rank, world_size);
  options.shuffle = false;
  options.drop_last = false;
  if (const int64_t rows = reference_options(spec.method()).precompute_rows; rows > 0) {
    options.batch_rows = rows;
    options.split_batches = false;
  }
  return options;
}

at::Tensor score_rows(const v1::JobSpec& spec, DecoderModel& reference, const Batch& batch,
                      Collectives& data) {
  const at::Tensor scores_S =
      score_completions(reference, batch, /*forward=*/{}, tail_alpha(spec.method()));
  const int64_t of_row = spec.method().has_dpo() ? 2 : 1;
  return gather_rows(scores_S.view({-1, of_row}), batch, data);
}

ReferencePass::ReferencePass(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh,
                             const StreamShare& share, at::Device device, Reporter& reporter)
    : spec_(spec),
      config_(config),
      mesh_(mesh),
      share_(share),
      device_(device),
      reporter_(reporter) {
  const v1::Data& data = spec.data();
  if (data.cache_dir().empty()) return;
  cache_.emplace(CacheOptions{data.cache_dir(), data.cache_max_bytes()}, reporter.data());
}

ReferencePass::Scored ReferencePass::look_up(const Dataset& dataset) {
  Scored scored{&dataset, {}, nullptr, {}};
  if (cache_) {
    scored.key = reference_key(*cache_, dataset, reference_model(spec_));
    if (!scored.key.empty()) scored.scores = ReferenceScores::find(*cache_, scored.key, dataset);
  }
  // Ranks of other machines have other caches.
  const OwnerScope scope(Owner::kCommunication);
  at::Tensor found =
      at::full({1}, scored.scores != nullptr ? 1 : 0, at::TensorOptions(device_).dtype(at::kLong));
  mesh_.world.all_reduce_sum(found);
  if (host_values(found.to(at::kDouble)).front() < mesh_.world.size()) scored.scores = nullptr;
  return scored;
}

void ReferencePass::find(const Dataset& dataset, bool held_out) {
  Entry entry{&dataset, held_out, look_up(dataset), std::nullopt};
  if (const Dataset* mismatched = dataset.mismatched()) entry.mismatched = look_up(*mismatched);
  entries_.push_back(std::move(entry));
}

bool ReferencePass::has_all() const {
  return std::ranges::all_of(entries_, [](const Entry& entry) {
    return entry.rows.scores != nullptr &&
           (!entry.mismatched || entry.mismatched->scores != nullptr);
  });
}

void ReferencePass::compute(TrainableModel& reference) {
  const OwnerScope scope(Owner::kActivations);
  for (Entry& entry : entries_) compute(entry, reference);
}

void ReferencePass::compute(Entry& entry, TrainableModel& reference) {
  const Loader loader(*entry.dataset, scoring_loader_options(spec_, entry.held_out, config_,
                                                             mesh_.data.rank(), mesh_.data.size()));
  const auto score = [&](const Batch& batch, Scored& scored) {
    const at::Tensor scores = score_rows(spec_, *reference.model, batch, mesh_.data);
    const std::vector<double> values = host_values(scores.flatten());
    scored.computed.insert(scored.computed.end(), values.begin(), values.end());
  };
  for (int64_t i = 0; i < loader.microbatches_per_epoch(); ++i) {
    reporter_.progress("load", 0);
    const Batch batch =
        to_device(share_.of(loader.microbatch(0, i * loader.microbatch_rows())), device_);
    score(batch, entry.rows);
    if (entry.mismatched) score(*batch.mismatched, *entry.mismatched);
  }
  reference.finish_backward();
  keep(entry.rows);
  if (entry.mismatched) keep(*entry.mismatched);
}

void ReferencePass::keep(Scored& scored) {
  scored.scores = std::make_shared<ReferenceScores>(*scored.dataset, std::move(scored.computed));
  if (!scored.key.empty()) scored.scores->save(*cache_, scored.key);
}

DatasetScores ReferencePass::of(const Dataset& dataset) const {
  const auto entry = std::ranges::find(entries_, &dataset, &Entry::dataset);
  TORCH_CHECK(entry != entries_.end(), "nobody looked for the scores of this dataset");
  return {entry->rows.scores, entry->mismatched ? entry->mismatched->scores : nullptr};
}

}  // namespace tessera
