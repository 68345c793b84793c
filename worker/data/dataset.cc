#include "worker/data/dataset.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <span>
#include <thread>

#include "worker/data/jsonl.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {
namespace {

constexpr size_t kBlockLines = 64;  // tokenised at a time by one thread
constexpr int kMaxThreads = 64;

// Documents one after the other.
struct Documents {
  std::vector<int32_t> tokens;
  std::vector<int64_t> lengths;
};

class PackedDataset final : public Dataset {
 public:
  PackedDataset(Documents documents, PackingPlan plan, bool one_document_a_row)
      : tokens_(std::move(documents.tokens)),
        plan_(std::move(plan)),
        one_document_a_row_(one_document_a_row) {
    std::vector<int64_t> begins(documents.lengths.size());
    std::exclusive_scan(documents.lengths.begin(), documents.lengths.end(), begins.begin(),
                        int64_t{0});
    for (Segment& segment : plan_.segments) segment.begin += begins[segment.document];
    num_tokens_.reserve(plan_.num_rows());
    for (int64_t row = 0; row < plan_.num_rows(); ++row) {
      int64_t count = 0;
      for (const Segment& segment : plan_.row(row)) count += segment.length;
      num_tokens_.push_back(count);
    }
  }

  int64_t size() const override { return plan_.num_rows(); }

  Row row(int64_t index) const override {
    Row row;
    row.tokens.reserve(num_tokens_[index]);
    for (const Segment& segment : plan_.row(index)) {
      const auto begin = tokens_.begin() + segment.begin;
      row.tokens.insert(row.tokens.end(), begin, begin + segment.length);
      if (!one_document_a_row_) row.lengths.push_back(static_cast<int32_t>(segment.length));
    }
    if (one_document_a_row_) row.lengths.push_back(static_cast<int32_t>(row.tokens.size()));
    return row;
  }

  int64_t num_tokens(int64_t index) const override { return num_tokens_[index]; }

  int64_t num_labels(int64_t index) const override {
    const auto documents = one_document_a_row_ ? 1 : static_cast<int64_t>(plan_.row(index).size());
    return num_tokens_[index] - documents;
  }

 private:
  std::vector<int32_t> tokens_;
  PackingPlan plan_;  // its segments begin at a place in tokens_
  bool one_document_a_row_;
  std::vector<int64_t> num_tokens_;  // of each row
};

// Turns lines into tokens; one a thread.
class LineTokenizer {
 public:
  LineTokenizer(const DatasetOptions& options, const JsonlFile& file, const Tokenizer& tokenizer,
                const std::string& eos_token)
      : options_(options),
        file_(file),
        tokenizer_(tokenizer),
        eos_token_(eos_token),
        parser_(file),
        encoder_(tokenizer) {}

  void append(const JsonlFile::Line& line, Documents& documents) {
    text_ = parser_.string(line, options_.text_field);
    if (!text_.ends_with(eos_token_)) text_ += eos_token_;
    const size_t begin = documents.tokens.size();
    encoder_.encode(text_, documents.tokens);
    const auto tokens = std::span(documents.tokens).subspan(begin);
    documents.lengths.push_back(static_cast<int64_t>(tokens.size()));
    if (options_.vocab_size > 0) check(line, tokens);
  }

 private:
  void check(const JsonlFile::Line& line, std::span<const int32_t> tokens) const {
    for (const int32_t id : tokens) {
      if (id < options_.vocab_size) continue;
      file_.fail(line, "the tokenizer gives \"" + tokenizer_.token_of(id) + "\" the id " +
                           std::to_string(id) + ", which must be below the model's vocab_size " +
                           std::to_string(options_.vocab_size));
    }
  }

  const DatasetOptions& options_;
  const JsonlFile& file_;
  const Tokenizer& tokenizer_;
  const std::string& eos_token_;
  JsonlParser parser_;
  Encoder encoder_;
  std::string text_;
};

struct Block {
  Documents documents;
  std::exception_ptr error;
};

// Blocks are taken in order, so those before one that fails are all read: the first error in the
// file is reported whatever the threads do.
std::vector<Block> tokenize_blocks(const DatasetOptions& options, const JsonlFile& file,
                                   const Tokenizer& tokenizer, const std::string& eos_token) {
  const auto& lines = file.lines();
  std::vector<Block> blocks((lines.size() + kBlockLines - 1) / kBlockLines);
  std::atomic<size_t> next_block{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    LineTokenizer line_tokenizer(options, file, tokenizer, eos_token);
    while (!failed) {
      const size_t index = next_block++;
      if (index >= blocks.size()) return;
      const size_t end = std::min(lines.size(), (index + 1) * kBlockLines);
      try {
        for (size_t i = index * kBlockLines; i < end; ++i) {
          line_tokenizer.append(lines[i], blocks[index].documents);
        }
      } catch (...) {
        blocks[index].error = std::current_exception();
        failed = true;
      }
    }
  };
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int wanted = options.num_threads > 0 ? options.num_threads : cores;
  const auto num_threads =
      std::min<size_t>(std::clamp(wanted, 1, kMaxThreads), std::max<size_t>(1, blocks.size()));
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < num_threads; ++i) helpers.emplace_back(work);
    work();
  }
  return blocks;
}

Documents join(std::vector<Block> blocks) {
  Documents all;
  size_t num_tokens = 0;
  for (const Block& block : blocks) {
    if (block.error) std::rethrow_exception(block.error);
    num_tokens += block.documents.tokens.size();
  }
  all.tokens.reserve(num_tokens);
  for (Block& block : blocks) {
    const Documents documents = std::move(block.documents);
    all.tokens.insert(all.tokens.end(), documents.tokens.begin(), documents.tokens.end());
    all.lengths.insert(all.lengths.end(), documents.lengths.begin(), documents.lengths.end());
  }
  return all;
}

std::string eos_token_of(const DatasetOptions& options, const Tokenizer& tokenizer) {
  const bool given = !options.eos_token.empty();
  const std::string eos = given ? options.eos_token : tokenizer.eos_token();
  const std::string field = given ? "method.sft.eos_token" : kTokenizerField;
  if (eos.empty()) {
    throw UserError(field, options.tokenizer.string() +
                               " names no eos_token; give one as method.sft.eos_token");
  }
  if (!tokenizer.id_of(eos)) {
    throw UserError(field, "the eos_token \"" + eos + "\" is not in the vocabulary of " +
                               options.tokenizer.string());
  }
  return eos;
}

}  // namespace

std::unique_ptr<Dataset> load_dataset(const DatasetOptions& options) {
  const JsonlFile file(options.path, options.field, options.max_documents);
  if (file.lines().empty()) file.fail("there are no documents in it");
  const Tokenizer tokenizer(options.tokenizer);
  const std::string eos_token = eos_token_of(options, tokenizer);
  Documents documents = join(tokenize_blocks(options, file, tokenizer, eos_token));
  PackingPlan plan = plan_packing(documents.lengths, options.max_length, options.packing);
  return std::make_unique<PackedDataset>(std::move(documents), std::move(plan),
                                         options.packing == PackingStrategy::kWrapped);
}

}  // namespace tessera
