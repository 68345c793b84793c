#include "worker/data/dataset.h"

#include <array>
#include <chrono>
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

// Empty: one after the other.
std::vector<uint32_t> order_of(std::span<const std::unique_ptr<TokenStore>> stores,
                               const DatasetOptions& options) {
  if (stores.size() == 1) return {};
  std::vector<MixtureSource> sources;
  for (size_t i = 0; i < stores.size(); ++i) {
    sources.push_back({stores[i]->size(), options.sources[i].weight});
  }
  return interleave(sources, options.stopping, options.mixture_seed);
}

// Makes the documents of one source, or finds them in the cache.
class SourceLoader {
 public:
  SourceLoader(const DatasetOptions& options, const Tokenizer& tokenizer, TokenCache* cache)
      : options_(options), examples_(options.examples), tokenizer_(tokenizer), cache_(cache) {
    examples_.note = options.reports.note;
  }

  std::unique_ptr<TokenStore> load(const DataSource& source) const {
    const auto files = find_data_files(source.paths, source.field);
    const auto format = format_of(source, files);
    if (cache_ != nullptr) {
      const std::string key = key_of(files, *format);
      return cache_->get(key, [&](TokenStoreWriter& writer) {
        encode(files, *format, writer);
        if (key_of(files, *format) != key) {
          throw UserError(source.field, source.paths.front().string() +
                                            " was changed while it was read; start the job again");
        }
      });
    }
    TokenStoreWriter writer;
    encode(files, *format, writer);
    writer.finish();
    return std::make_unique<TokenStore>(writer);
  }

 private:
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
              TokenStoreWriter& writer) const {
    const auto begin = std::chrono::steady_clock::now();
    encode_records(files, format, tokenizer_, {options_.num_threads, options_.vocab_size},
                   [&](std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask) {
                     writer.append(tokens, loss_mask);
                     options_.reports.alive();
                     return writer.num_documents() != options_.max_documents;
                   });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    options_.reports.note("tokenised " + std::to_string(writer.num_documents()) + " documents, " +
                          std::to_string(writer.num_tokens()) + " tokens, in " +
                          std::to_string(seconds.count()) + " s");
  }

  const DatasetOptions& options_;
  ExampleOptions examples_;
  const Tokenizer& tokenizer_;
  TokenCache* const cache_;
};

}  // namespace

std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options) {
  const Tokenizer tokenizer(options.examples.tokenizer);
  std::optional<TokenCache> cache;
  if (options.max_documents == 0 && !options.cache.directory.empty()) {
    cache.emplace(options.cache, options.reports);
  }
  const SourceLoader loader(options, tokenizer, cache ? &*cache : nullptr);
  std::vector<std::unique_ptr<TokenStore>> stores;
  for (const DataSource& source : options.sources) stores.push_back(loader.load(source));
  const std::string& field = options.sources.front().field;
  try {
    std::vector<uint32_t> order = order_of(stores, options);
    auto dataset = std::make_unique<PackedDataset>(
        std::move(stores), std::move(order), RowPlanOptions{options.max_length, options.packing});
    if (dataset->size() == 0 && options.max_documents == 0) {
      throw UserError(field, options.sources.front().paths.front().string() +
                                 ": no token counts in any document, cut to " +
                                 std::to_string(options.max_length) + " tokens");
    }
    return dataset;
  } catch (const std::length_error& error) {
    throw UserError(field, error.what());
  }
}

}  // namespace tessera
