// Generates completions with the weights of a model that trains.
//
// Keys and values lie in pages that the samples of a prompt share; sequences come and go between
// passes (continuous batching, worker/generate/scheduler.h). Each pass runs the model's own blocks
// on the tokens of all its sequences as one flat stream: projections, adapters, experts and
// quantized matrices are those of training, only attention looks into the pages. Logits are made
// for sampled tokens alone.
//
// What a sample depends on: its prompt, its parameters, its seed, the weights, and whether the
// engine is one for many sequences. In float32 on a CPU nothing depends on the batch, to the bit:
// attention, norms, sampling and random numbers by kernels of ours, matrix products by
// worker/kernels/row_product.h. With other types and devices BLAS makes the products, which sums in
// another order for a few rows. oneDNN, on one thread, was found to give a row the same bits in any
// product of 16 rows or more, whence min_rows. What remains there is a mixture's experts, of which
// each has as many rows as chose it, several threads, and other BLAS: another batch mix gives
// log-probabilities within rounding, and the same tokens but where a choice hung on the last bits
// (sampler.h says when). The same requests in the same order give the same bits everywhere.
//
// Not thread safe. Calls that say so are collective over the group that the weights are sharded
// over: made by all its ranks in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/data/tokenizer.h"
#include "worker/generate/kv_cache.h"
#include "worker/generate/page_pool.h"
#include "worker/generate/request.h"
#include "worker/generate/sampler.h"
#include "worker/generate/scheduler.h"
#include "worker/generate/weights.h"
#include "worker/model/decoder.h"
#include "worker/parallel/collectives.h"

namespace tessera {

enum class SleepLevel : uint8_t {
  kKeep = 0,     // the cache stays; gathered weights go
  kOffload = 1,  // pages of unfinished sequences go to host memory
  kDrop = 2,     // pages are lost: unfinished sequences run again from their first token
};

// The engine went to sleep, or woke.
struct EngineTransition {
  bool is_wake = false;
  SleepLevel level = SleepLevel::kDrop;
  int64_t kv_cache_bytes = 0;  // of the cache, freed or allocated
  int64_t weight_bytes = 0;    // of gathered weights and of those kept aside, likewise
  int64_t host_bytes = 0;      // that went to host memory, or came back
  double seconds = 0;
};

// A token of a completion, as it is made.
struct GeneratedToken {
  int64_t request = 0, sample = 0;
  SampledToken sampled;
};

struct EngineOptions {
  int64_t num_pages = 0;  // of the cache; see kv_page_bytes() and pages_for()
  ScheduleLimits limits;
  WeightMode weights = WeightMode::kGather;
  // Matrix products that BLAS makes have so many rows at least; rows that nobody needs are added.
  // 1: none are, which is quicker while few sequences run.
  int64_t min_rows = 16;
  // Whether it is to be fast with 16 sequences at once and more, or with fewer: see ManyRowsScope
  // (worker/kernels/row_product.h), by which its products are made.
  bool many_sequences = true;
  bool adapters = true;  // else the model is served without them
  // They are merged into the weights while the engine is awake, which then takes another copy of
  // this rank's shards of those. Requires adapters, and that what they adapt is not quantized.
  bool merges_adapters = false;
  std::function<void(const EngineTransition&)> on_transition = [](const EngineTransition&) {};
  std::function<void(const GeneratedToken&)> on_token = [](const GeneratedToken&) {};
};

// A sample that another engine is to go on with.
struct HandedSample {
  int64_t request = 0, sample = 0;  // as the engine that gives it has them
  GenerationRequest rest;           // with its seed alone, and what is there of it
};

// Counts since the engine was made.
struct EngineCounts {
  int64_t passes = 0;
  int64_t most_pass_tokens = 0;  // of the heaviest
  int64_t tokens_run = 0;        // through the model, of prompts and completions
  int64_t tokens_sampled = 0;    // of completions
  int64_t preemptions = 0;
  int64_t pages_copied = 0;
};

class Engine {
 public:
  struct Parts {
    DecoderModel& model;
    std::vector<ShardedUnit*> units;       // of the model
    Collectives& group;                    // that they are sharded over
    const Tokenizer* tokenizer = nullptr;  // needed for stop strings alone
  };
  // All parts must outlive it. It sleeps, and holds no memory.
  Engine(const Parts& parts, const EngineOptions& options);
  ~Engine();

  // Takes a request and returns its number. Throws UserError where a parameter is out of bounds, a
  // token is not of the vocabulary, or prompt and completion do not fit the cache.
  int64_t submit(GenerationRequest request);
  // Its unfinished samples end with what they have, as FinishReason::kCancelled.
  void cancel(int64_t request);
  // Gives up at most `count` unfinished samples, those first that arrived last, of which no more
  // tokens have to be run again than may still come.
  std::vector<HandedSample> hand_over(int64_t count);
  // Until it sleeps, no pass takes more tokens than the heaviest so far: memory for what others
  // began is that for what is its own.
  void bound_passes();
  // Unfinished ones, and those of them that hand_over() may give up.
  int64_t num_unfinished() const;
  int64_t num_movable() const;
  // One pass; wakes the engine where it sleeps. Returns whether there was anything to do: with
  // kLayerwise on any rank of the group, and then it is collective. Waking always is.
  bool step();
  // What was finished since the last call, by request and sample.
  std::vector<Completion> take_finished();

  // Submits the requests and steps until all are finished. Returns the completions in their order,
  // those of a request by sample. Collective, also where a rank has no requests.
  std::vector<Completion> generate(const std::vector<GenerationRequest>& requests);

  // Sequences that stand alike: tokens [begin, begin + count) of each are run, and the next one is
  // sampled.
  struct AlikeSequences {
    int64_t num_sequences = 1, begin = 0, count = 1;
  };
  // Allocates what a pass of these does, whatever was submitted. Requires an awake engine, and
  // tensors without data.
  void rehearse_pass(const AlikeSequences& sequences);

  bool is_awake() const { return is_awake_; }
  void wake();  // collective; nothing where it is awake, which all ranks are or none is
  // Weights may be changed until it wakes. What unfinished sequences have in the cache is then of
  // the weights as they were.
  void fall_asleep(SleepLevel level);

  // Nothing runs, and nothing waits on this rank.
  bool is_idle() const { return scheduler_.is_idle(); }
  const EngineCounts& counts() const { return counts_; }
  int64_t kv_cache_bytes() const { return cache_.bytes(); }

 private:
  void add_sequences(const std::shared_ptr<RequestState>& state);
  bool any_rank_has_work();
  int64_t least_rows() const;
  void run_pass(const Pass& pass);
  at::Tensor run_model(const Pass& pass);
  std::vector<std::vector<SampledToken>> sample(const Pass& pass, const at::Tensor& hidden_TD);
  void take_samples(Sequence& sequence, const std::vector<SampledToken>& sampled);
  void append(Sequence& sequence, const SampledToken& sampled);
  void finish(const Sequence& sequence, FinishReason reason);

  Parts parts_;
  EngineOptions options_;
  at::Device device_;
  at::ScalarType dtype_;
  PagePool pool_;
  KvCache cache_;
  SequenceScheduler scheduler_;
  GenerationWeights weights_;
  bool is_awake_ = false;
  SleepLevel slept_ = SleepLevel::kDrop;
  int64_t host_bytes_ = 0;  // of pages, while it sleeps
  int64_t next_request_ = 0;
  int64_t next_sequence_ = 0;
  std::vector<Completion> finished_;
  EngineCounts counts_;
};

}  // namespace tessera
