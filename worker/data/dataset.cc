#include "worker/data/dataset.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>

#include "worker/data/content_hash.h"
#include "worker/data/data_files.h"
#include "worker/data/encode_records.h"
#include "worker/data/live_rollouts.h"
#include "worker/data/packed_dataset.h"
#include "worker/data/recorded_rollouts.h"
#include "worker/data/token_cache.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {
namespace {

// What a tokenizer's directory may hold that ids or templates depend on.
constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer.model",
                                        "spiece.model",
                                        "sentencepiece.bpe.model",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "config.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja"};

// Of sources of these sizes, in records. Empty: one after the other.
std::vector<uint32_t> order_of(std::span<const int64_t> sizes, const DatasetOptions& options) {
  if (sizes.size() == 1) return {};
  std::vector<MixtureSource> sources;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sources.push_back({sizes[i], options.sources[i].weight});
  }
  return interleave(sources, options.stopping, options.mixture_seed);
}

std::vector<DocumentLength> rollout_lengths(const Rollouts& read) {
  std::vector<DocumentLength> lengths;
  for (const Rollout& rollout : read.rollouts) {
    const auto prompt = static_cast<int32_t>(rollout.prompt.size());
    lengths.push_back({prompt + static_cast<int32_t>(rollout.completion.size()), prompt});
  }
  return lengths;
}

DocumentLength length_of(const ExampleDocument& document) {
  const auto counts = [](uint8_t mask) { return mask != 0; };
  const auto& mask = document.loss_mask;
  const auto first = std::find_if(mask.begin(), mask.end(), counts);
  return {static_cast<int32_t>(document.tokens.size()), static_cast<int32_t>(first - mask.begin())};
}

RowPlanOptions plan_options(const DatasetOptions& options) {
  // What a prompt loses depends on its completion.
  const bool is_prompt = options.examples.kind == RecordKind::kPrompt;
  return {.max_length = is_prompt ? 0 : options.max_length,
          .packing = options.packing,
          .truncation = truncation_of(options),
          .row_is_record = options.examples.kind != RecordKind::kKto};
}

// Why rows are left out.
std::string reason_of(const DatasetOptions& options) {
  if (options.max_length == 0) return "there are no tokens in them";
  const std::string limit = options.max_length_field + " " + std::to_string(options.max_length);
  switch (truncation_of(options).left_out) {
    case LeftOut::kNone:
      return "there are no tokens in them";
    case LeftOut::kUnlabelled:
      return "none of their tokens counts, cut to " + limit;
    case LeftOut::kLongPrompt:
      return "their prompt alone fills " + limit;
    case LeftOut::kLonger:
      return "a document is longer than " + limit;
    case LeftOut::kPromptCutOff:
      return "no token of their prompt is left, cut to " + limit;
  }
  throw std::logic_error("no such reason");
}

void require_rows(const PackedDataset& dataset, const DatasetOptions& options) {
  const int64_t num_left_out = dataset.num_left_out();
  if (dataset.size() > 0) {
    if (num_left_out == 0) return;
    options.reports.note(std::to_string(num_left_out) + " of " +
                         std::to_string(num_left_out + dataset.size()) +
                         " rows are left out: " + reason_of(options));
    return;
  }
  if (options.max_documents > 0) return;
  const DataSource& source = options.sources.front();
  throw UserError(source.field,
                  source.paths.front().string() + ": no row is left: " + reason_of(options));
}

// What rows depend on besides their documents.
std::string rows_key(std::span<const std::string> sources, const DatasetOptions& options) {
  if (std::ranges::find(sources, "") != sources.end()) return "";
  ContentHash key;
  for (size_t i = 0; i < sources.size(); ++i) {
    key.add(sources[i]);
    key.add(std::to_string(options.sources[i].weight));
  }
  if (sources.size() > 1) {
    key.add(std::to_string(static_cast<int>(options.stopping)));
    key.add(std::to_string(options.mixture_seed));
  }
  for (const int64_t number : {options.max_length, int64_t{options.keep_end},
                               static_cast<int64_t>(options.packing), options.rotation_rows}) {
    key.add(std::to_string(number));
  }
  return key.hex();
}

// Makes the documents of one source, or finds them in the cache.
class SourceLoader {
 public:
  // Without a tokenizer the documents have to be tokens.
  SourceLoader(const DatasetOptions& options, const Tokenizer* tokenizer, TokenCache* cache)
      : options_(options), examples_(options.examples), tokenizer_(tokenizer), cache_(cache) {
    examples_.note = options.reports.note;
  }

  struct Source {
    std::unique_ptr<TokenStore> store;
    std::string key;  // in the cache; empty: it is not there
    int64_t num_records = 0;
  };

  Source load(const DataSource& source) const {
    const auto files = find_data_files(source.paths, source.field);
    const auto format = format_of(source, files);
    Source loaded;
    if (cache_ != nullptr) {
      loaded.key = key_of(files, *format);
      loaded.store = cache_->get(loaded.key, [&](TokenStoreWriter& writer) {
        write(files, *format, writer);
        if (key_of(files, *format) != loaded.key) {
          throw UserError(source.field, source.paths.front().string() +
                                            " was changed while it was read; start the job again");
        }
      });
    } else {
      TokenStoreWriter writer;
      write(files, *format, writer);
      writer.finish();
      loaded.store = std::make_unique<TokenStore>(writer);
    }
    loaded.num_records = loaded.store->size() / loaded.store->documents_per_record();
    return loaded;
  }

  // Also sets how many documents a record has.
  std::vector<DocumentLength> measure(const DataSource& source, int& documents_per_record) const {
    const auto files = find_data_files(source.paths, source.field);
    const auto format = format_of(source, files);
    documents_per_record = format->documents_per_record();
    std::vector<DocumentLength> lengths;
    encode(files, *format, [&](const auto& document) { lengths.push_back(length_of(document)); });
    return lengths;
  }

 private:
  using Append = std::function<void(const ExampleDocument&)>;

  void write(std::span<const RecordFile> files, const ExampleFormat& format,
             TokenStoreWriter& writer) const {
    writer.set_documents_per_record(format.documents_per_record());
    encode(files, format, [&](const ExampleDocument& document) {
      writer.append(document.tokens, document.loss_mask, document.value);
    });
  }

  std::unique_ptr<const ExampleFormat> format_of(const DataSource& source,
                                                 std::span<const RecordFile> files) const {
    for (const RecordFile& file : files) {
      const auto reader = open_records(file);
      while (const auto block = reader->next_block()) {
        const Record* first = block->next();
        if (first != nullptr) return make_example_format(examples_, tokenizer_, *first);
      }
    }
    throw UserError(source.field, source.paths.front().string() + ": there are no documents in it");
  }

  // Of everything the tokens depend on; tokens of another build of this program are not trusted.
  std::string key_of(std::span<const RecordFile> files, const ExampleFormat& format) const {
    ContentHash key;
    key.add(cache_->content_hash({std::filesystem::read_symlink("/proc/self/exe"), ""}));
    for (const char* name : kTokenizerFiles) {
      const auto path = options_.examples.tokenizer / name;
      key.add(std::filesystem::exists(path) ? cache_->content_hash({path, kTokenizerField}) : "");
    }
    const ExampleOptions& examples = options_.examples;
    const auto completion_only = examples.completion_only_loss;
    key.add(std::to_string(static_cast<int>(examples.kind)));
    key.add(examples.text_field);
    key.add(examples.eos_token);
    key.add(completion_only ? (*completion_only ? "1" : "0") : "");
    key.add(examples.assistant_only_loss ? "1" : "0");
    key.add(format.fingerprint());
    key.add(std::to_string(options_.vocab_size));
    for (const RecordFile& file : files) key.add(cache_->content_hash(file));
    return key.hex();
  }

  void encode(std::span<const RecordFile> files, const ExampleFormat& format,
              const Append& append) const {
    const auto begin = std::chrono::steady_clock::now();
    int64_t num_documents = 0, num_tokens = 0;
    const int64_t most = options_.max_documents * format.documents_per_record();
    encode_records(files, format, tokenizer_, {options_.num_threads, options_.vocab_size},
                   [&](const ExampleDocument& document) {
                     append(document);
                     num_tokens += static_cast<int64_t>(document.tokens.size());
                     options_.reports.alive();
                     return ++num_documents != most;
                   });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    options_.reports.note("tokenised " + std::to_string(num_documents) + " documents, " +
                          std::to_string(num_tokens) + " tokens, in " +
                          std::to_string(seconds.count()) + " s");
  }

  const DatasetOptions& options_;
  ExampleOptions examples_;
  const Tokenizer* const tokenizer_;
  TokenCache* const cache_;
};

// What cannot be put together is the sources' fault.
template <typename Body>
auto charge_to_source(const DatasetOptions& options, const Body& body) {
  const std::string& field = options.sources.front().field;
  try {
    return body();
  } catch (const std::length_error& error) {
    throw UserError(field, error.what());
  } catch (const std::invalid_argument& error) {
    throw UserError(field, error.what());
  }
}

}  // namespace

Truncation truncation_of(const DatasetOptions& options) {
  switch (options.examples.kind) {
    case RecordKind::kSft:
      return {.keep_end = false, .left_out = LeftOut::kUnlabelled};
    case RecordKind::kDpo:
      if (options.keep_end) return {.keep_end = true, .left_out = LeftOut::kNone};
      return {.keep_end = false, .left_out = LeftOut::kLongPrompt};
    case RecordKind::kKto:
      return {.keep_end = false, .left_out = LeftOut::kLongPrompt};
    case RecordKind::kReward:
      return {.keep_end = false, .left_out = LeftOut::kLonger};
    case RecordKind::kGkd:
      return {.keep_end = true, .left_out = LeftOut::kPromptCutOff};
    case RecordKind::kPrompt:
      return {.keep_end = true, .left_out = LeftOut::kNone};
  }
  throw std::logic_error("no such kind of record");
}

namespace {

std::unique_ptr<PackedDataset> load_documents(const DatasetOptions& options) {
  const Tokenizer tokenizer(options.examples.tokenizer);
  std::optional<TokenCache> cache;
  if (options.max_documents == 0 && !options.cache.directory.empty()) {
    cache.emplace(options.cache, options.reports);
  }
  const SourceLoader loader(options, &tokenizer, cache ? &*cache : nullptr);
  std::vector<std::unique_ptr<TokenStore>> stores;
  std::vector<std::string> keys;
  std::vector<int64_t> sizes;
  for (const DataSource& source : options.sources) {
    SourceLoader::Source loaded = loader.load(source);
    stores.push_back(std::move(loaded.store));
    keys.push_back(std::move(loaded.key));
    sizes.push_back(loaded.num_records);
  }
  return charge_to_source(options, [&] {
    std::vector<uint32_t> order = order_of(sizes, options);
    auto dataset =
        std::make_unique<PackedDataset>(std::move(stores), std::move(order), plan_options(options),
                                        rows_key(keys, options), options.rotation_rows);
    require_rows(*dataset, options);
    return dataset;
  });
}

}  // namespace

std::unique_ptr<LiveRollouts> load_prompts(const DatasetOptions& options) {
  return std::make_unique<LiveRollouts>(options, load_documents(options));
}

std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options) {
  if (!options.rollouts) return load_documents(options);
  if (options.rollouts->is_live) return load_prompts(options);
  return std::make_unique<RecordedRollouts>(options, read_rollouts(options));
}

std::vector<DocumentLength> load_lengths(const DatasetOptions& options) {
  if (options.rollouts && !options.rollouts->is_live)
    return rollout_lengths(read_rollouts(options));
  std::optional<Tokenizer> tokenizer;
  if (!options.examples.tokenizer.empty()) tokenizer.emplace(options.examples.tokenizer);
  const SourceLoader loader(options, tokenizer ? &*tokenizer : nullptr, nullptr);
  std::vector<DocumentLength> documents;
  std::vector<int64_t> sizes;
  int per_record = 0;
  for (const DataSource& source : options.sources) {
    const int before = per_record;
    const std::vector<DocumentLength> lengths = loader.measure(source, per_record);
    if (before != 0 && before != per_record) throw UserError(source.field, kMixedRecords);
    documents.insert(documents.end(), lengths.begin(), lengths.end());
    sizes.push_back(std::ssize(lengths) / per_record);
  }
  return charge_to_source(options, [&] {
    const std::vector<uint32_t> order = order_of(sizes, options);
    if (order.empty()) return documents;
    std::vector<DocumentLength> ordered;
    ordered.reserve(order.size() * static_cast<size_t>(per_record));
    for (const uint32_t record : order) {
      for (int i = 0; i < per_record; ++i) {
        ordered.push_back(
            documents[size_t{record} * static_cast<size_t>(per_record) + static_cast<size_t>(i)]);
      }
    }
    return ordered;
  });
}

}  // namespace tessera
