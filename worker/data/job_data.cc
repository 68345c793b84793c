#include "worker/data/job_data.h"

namespace tessera {
namespace {

std::vector<DataSource> sources_of(const v1::Data& data, bool held_out) {
  const auto paths_of = [](const auto& list) {
    return std::vector<std::filesystem::path>(list.begin(), list.end());
  };
  if (held_out) return {{.paths = paths_of(data.eval()), .field = "data.eval"}};
  if (data.mixture().empty()) return {{.paths = paths_of(data.train()), .field = "data.train"}};
  std::vector<DataSource> sources;
  for (const v1::DataSource& source : data.mixture()) {
    sources.push_back({.paths = paths_of(source.path()),
                       .field = "data.mixture[" + std::to_string(sources.size()) + "].path",
                       .weight = source.weight()});
  }
  return sources;
}

}  // namespace

DatasetOptions dataset_options(const v1::JobSpec& spec, bool held_out, int64_t vocab_size) {
  const v1::Sft& sft = spec.method().sft();
  DatasetOptions options;
  options.sources = sources_of(spec.data(), held_out);
  options.stopping = spec.data().mixture_stopping_strategy() == "all_exhausted"
                         ? StoppingStrategy::kAllExhausted
                         : StoppingStrategy::kFirstExhausted;
  options.mixture_seed = static_cast<uint64_t>(spec.training().seed());
  options.cache = {spec.data().cache_dir(), spec.data().cache_max_bytes()};
  options.num_threads = spec.resources().cpu_threads();
  options.examples.text_field = sft.dataset_text_field();
  options.examples.tokenizer = tokenizer_directory(spec);
  options.examples.eos_token = sft.eos_token();
  if (sft.has_completion_only_loss()) {
    options.examples.completion_only_loss = sft.completion_only_loss();
  }
  options.examples.assistant_only_loss = sft.assistant_only_loss();
  options.examples.chat_template_path = sft.chat_template_path();
  options.max_length = sft.max_length();
  options.vocab_size = vocab_size;
  const bool packs = held_out && sft.has_eval_packing() ? sft.eval_packing() : sft.packing();
  if (packs) {
    options.packing = sft.packing_strategy() == "bfd"         ? PackingStrategy::kBfd
                      : sft.packing_strategy() == "bfd_split" ? PackingStrategy::kBfdSplit
                                                              : PackingStrategy::kWrapped;
  }
  return options;
}

std::filesystem::path tokenizer_directory(const v1::JobSpec& spec) {
  return spec.model().tokenizer().empty() ? spec.model().path() : spec.model().tokenizer();
}

}  // namespace tessera
