#include "worker/data/dataset.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>

#include "worker/data/content_hash.h"
#include "worker/data/data_files.h"
#include "worker/data/encode_records.h"
#include "worker/data/packed_dataset.h"
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

// Of sources of these sizes, in documents. Empty: one after the other.
std::vector<uint32_t> order_of(std::span<const int64_t> sizes, const DatasetOptions& options) {
  if (sizes.size() == 1) return {};
  std::vector<MixtureSource> sources;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sources.push_back({sizes[i], options.sources[i].weight});
  }
  return interleave(sources, options.stopping, options.mixture_seed);
}

DocumentLength length_of(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask) {
  const auto counts = [](uint8_t mask) { return mask != 0; };
  const auto first = std::find_if(loss_mask.begin(), loss_mask.end(), counts);
  return {static_cast<int32_t>(tokens.size()), static_cast<int32_t>(first - loss_mask.begin())};
}

void require_documents(const Dataset& dataset, const DatasetOptions& options) {
  if (dataset.size() > 0 || options.max_documents > 0) return;
  const DataSource& source = options.sources.front();
  throw UserError(source.field, source.paths.front().string() +
                                    ": no token counts in any document, cut to " +
                                    std::to_string(options.max_length) + " tokens");
}

// Makes the documents of one source, or finds them in the cache.
class SourceLoader {
 public:
  // Without a tokenizer the documents have to be tokens.
  SourceLoader(const DatasetOptions& options, const Tokenizer* tokenizer, TokenCache* cache)
      : options_(options), examples_(options.examples), tokenizer_(tokenizer), cache_(cache) {
    examples_.note = options.reports.note;
  }

  std::unique_ptr<TokenStore> load(const DataSource& source) const {
    const auto files = find_data_files(source.paths, source.field);
    const auto format = format_of(source, files);
    if (cache_ != nullptr) {
      const std::string key = key_of(files, *format);
      return cache_->get(key, [&](TokenStoreWriter& writer) {
        encode(files, *format, appended_to(writer));
        if (key_of(files, *format) != key) {
          throw UserError(source.field, source.paths.front().string() +
                                            " was changed while it was read; start the job again");
        }
      });
    }
    TokenStoreWriter writer;
    encode(files, *format, appended_to(writer));
    writer.finish();
    return std::make_unique<TokenStore>(writer);
  }

  std::vector<DocumentLength> measure(const DataSource& source) const {
    const auto files = find_data_files(source.paths, source.field);
    std::vector<DocumentLength> lengths;
    encode(files, *format_of(source, files),
           [&](auto tokens, auto loss_mask) { lengths.push_back(length_of(tokens, loss_mask)); });
    return lengths;
  }

 private:
  using Append = std::function<void(std::span<const int32_t>, std::span<const uint8_t>)>;

  static Append appended_to(TokenStoreWriter& writer) {
    return [&writer](auto tokens, auto loss_mask) { writer.append(tokens, loss_mask); };
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
    encode_records(files, format, tokenizer_, {options_.num_threads, options_.vocab_size},
                   [&](std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask) {
                     append(tokens, loss_mask);
                     num_tokens += static_cast<int64_t>(tokens.size());
                     options_.reports.alive();
                     return ++num_documents != options_.max_documents;
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

}  // namespace

std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options) {
  const Tokenizer tokenizer(options.examples.tokenizer);
  std::optional<TokenCache> cache;
  if (options.max_documents == 0 && !options.cache.directory.empty()) {
    cache.emplace(options.cache, options.reports);
  }
  const SourceLoader loader(options, &tokenizer, cache ? &*cache : nullptr);
  std::vector<std::unique_ptr<TokenStore>> stores;
  std::vector<int64_t> sizes;
  for (const DataSource& source : options.sources) {
    sizes.push_back(stores.emplace_back(loader.load(source))->size());
  }
  try {
    std::vector<uint32_t> order = order_of(sizes, options);
    auto dataset = std::make_unique<PackedDataset>(
        std::move(stores), std::move(order), RowPlanOptions{options.max_length, options.packing});
    require_documents(*dataset, options);
    return dataset;
  } catch (const std::length_error& error) {
    throw UserError(options.sources.front().field, error.what());
  }
}

std::vector<DocumentLength> load_lengths(const DatasetOptions& options) {
  std::optional<Tokenizer> tokenizer;
  if (!options.examples.tokenizer.empty()) tokenizer.emplace(options.examples.tokenizer);
  const SourceLoader loader(options, tokenizer ? &*tokenizer : nullptr, nullptr);
  std::vector<DocumentLength> documents;
  std::vector<int64_t> sizes;
  for (const DataSource& source : options.sources) {
    const std::vector<DocumentLength> lengths = loader.measure(source);
    documents.insert(documents.end(), lengths.begin(), lengths.end());
    sizes.push_back(static_cast<int64_t>(lengths.size()));
  }
  try {
    const std::vector<uint32_t> order = order_of(sizes, options);
    if (order.empty()) return documents;
    std::vector<DocumentLength> ordered;
    ordered.reserve(order.size());
    for (const uint32_t document : order) ordered.push_back(documents[document]);
    return ordered;
  } catch (const std::length_error& error) {
    throw UserError(options.sources.front().field, error.what());
  }
}

}  // namespace tessera
