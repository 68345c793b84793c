#include "worker/data/encode_records.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {
namespace {

constexpr int kMaxThreads = 64;
constexpr int64_t kBlocksAhead = 4;  // a thread, of the block that is written next

// The documents of a block up to its end or its first error.
struct EncodedBlock {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss_mask;  // empty: all count
  std::vector<int64_t> lengths;
  std::vector<std::optional<float>> values;
  std::exception_ptr error;

  void append(const Example& example) {
    if (loss_mask.empty() && !example.loss_mask.empty()) loss_mask.assign(tokens.size(), 1);
    tokens.insert(tokens.end(), example.tokens.begin(), example.tokens.end());
    if (!example.loss_mask.empty()) {
      loss_mask.insert(loss_mask.end(), example.loss_mask.begin(), example.loss_mask.end());
    } else if (!loss_mask.empty()) {
      loss_mask.resize(tokens.size(), 1);
    }
    lengths.insert(lengths.end(), example.lengths.begin(), example.lengths.end());
    if (example.lengths.empty()) lengths.push_back(static_cast<int64_t>(example.tokens.size()));
    values.insert(values.end(), example.values.begin(), example.values.end());
    values.resize(lengths.size());
  }
};

class Pipeline {
 public:
  Pipeline(std::span<const RecordFile> files, const ExampleFormat& format,
           const Tokenizer* tokenizer, const EncodeOptions& options, const ExampleSink& sink)
      : files_(files), format_(format), tokenizer_(tokenizer), options_(options), sink_(sink) {}

  void run() {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int wanted = options_.num_threads > 0 ? options_.num_threads : cores;
    const int num_threads = std::clamp(wanted, 1, kMaxThreads);
    max_ahead_ = num_threads * kBlocksAhead;
    {
      std::vector<std::jthread> helpers;
      for (int i = 1; i < num_threads; ++i) helpers.emplace_back([this] { work(); });
      work();
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Taken {
    int64_t index;
    std::unique_ptr<RecordBlock> block;  // null: reading it failed
    std::exception_ptr error;
  };

  void work() {
    const auto encoder = format_.make_encoder();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopped_ || next_ - written_ < max_ahead_; });
      if (stopped_) return;
      Taken taken = take();
      if (taken.block == nullptr && !taken.error) return;
      lock.unlock();
      EncodedBlock encoded;
      encoded.error = taken.error;
      if (taken.block != nullptr) encode(*taken.block, *encoder, encoded);
      lock.lock();
      pending_.emplace(taken.index, std::move(encoded));
      write_pending();
      changed_.notify_all();
    }
  }

  // The next block of the files; neither block nor error at their end.
  Taken take() {
    Taken taken{next_, nullptr, nullptr};
    try {
      while (taken.block == nullptr) {
        if (reader_ == nullptr) {
          if (num_opened_ == files_.size()) return taken;
          reader_ = open_records(files_[num_opened_++]);
        }
        taken.block = reader_->next_block();
        if (taken.block == nullptr) reader_.reset();
      }
    } catch (...) {
      taken.error = std::current_exception();
      reader_.reset();
      num_opened_ = files_.size();
    }
    ++next_;
    return taken;
  }

  void encode(RecordBlock& block, ExampleEncoder& encoder, EncodedBlock& encoded) const {
    try {
      Example example;
      while (const Record* record = block.next()) {
        encoder.encode(*record, example);
        if (options_.vocab_size > 0) check(*record, example.tokens);
        encoded.append(example);
      }
    } catch (...) {
      encoded.error = std::current_exception();
    }
  }

  void check(const Record& record, std::span<const int32_t> tokens) const {
    for (const int32_t id : tokens) {
      if (id >= 0 && id < options_.vocab_size) continue;
      record.fail("the tokenizer gives \"" + tokenizer_->token_of(id) + "\" the id " +
                  std::to_string(id) + ", which must be below the model's vocab_size " +
                  std::to_string(options_.vocab_size));
    }
  }

  void write_pending() {
    while (!stopped_ && !pending_.empty() && pending_.begin()->first == written_) {
      const EncodedBlock block = std::move(pending_.begin()->second);
      pending_.erase(pending_.begin());
      ++written_;
      try {
        stopped_ = !write(block);
        if (!stopped_ && block.error) std::rethrow_exception(block.error);
      } catch (...) {
        error_ = std::current_exception();
        stopped_ = true;
      }
    }
  }

  bool write(const EncodedBlock& block) const {
    auto tokens = std::span(block.tokens);
    auto loss_mask = std::span(block.loss_mask);
    for (size_t i = 0; i < block.lengths.size(); ++i) {
      const auto length = static_cast<size_t>(block.lengths[i]);
      const size_t masked = loss_mask.empty() ? 0 : length;
      if (!sink_({tokens.first(length), loss_mask.first(masked), block.values[i]})) return false;
      tokens = tokens.subspan(length);
      loss_mask = loss_mask.subspan(masked);
    }
    return true;
  }

  const std::span<const RecordFile> files_;
  const ExampleFormat& format_;
  const Tokenizer* const tokenizer_;
  const EncodeOptions& options_;
  const ExampleSink& sink_;
  int64_t max_ahead_ = 0;

  std::mutex mutex_;  // guards the rest, and the calls of sink_
  std::condition_variable changed_;
  std::unique_ptr<RecordReader> reader_;
  size_t num_opened_ = 0;  // files
  int64_t next_ = 0;       // block to read
  int64_t written_ = 0;    // blocks handed to sink_
  std::map<int64_t, EncodedBlock> pending_;
  bool stopped_ = false;
  std::exception_ptr error_;
};

}  // namespace

void encode_records(std::span<const RecordFile> files, const ExampleFormat& format,
                    const Tokenizer* tokenizer, const EncodeOptions& options,
                    const ExampleSink& sink) {
  Pipeline(files, format, tokenizer, options, sink).run();
}

}  // namespace tessera
