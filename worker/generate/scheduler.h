// Which tokens of which sequences the next pass runs, and in which pages their keys and values go.
//
// A pass takes at most max_pass_tokens tokens: first the next token of each running sequence, then
// parts of prompts (chunked prefill), and then new sequences as far as pages are free. Where a
// running sequence needs a page and none is free, the latest to arrive gives its pages back and
// waits to be run again from its first token (preemption by recompute); what it has generated
// stays. No values are read: what happens depends on numbers of tokens alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "worker/generate/page_pool.h"
#include "worker/generate/sequence.h"

namespace tessera {

struct ScheduleLimits {
  int64_t max_pass_tokens = 512;
  int64_t max_running = 256;  // sequences at once; at most max_pass_tokens
  // Tokens that one sees in any layer, itself the last of them: pages behind are given back. 0: all
  // before it.
  int64_t window = 0;
};

// Tokens [begin, begin + count) of a sequence.
struct PassPart {
  Sequence* sequence;
  int64_t begin, count;
  bool samples;  // they end with its last token, so that the next one can be sampled
};

// Page `to` begins as a copy of `from`.
struct PageCopy {
  int32_t from, to;
};

struct Pass {
  std::vector<PassPart> parts;
  std::vector<PageCopy> copies;  // in this order, before the pass
  int64_t num_tokens = 0;
  int64_t num_preempted = 0;
};

class SequenceScheduler {
 public:
  // The pool must outlive it and be nobody else's.
  SequenceScheduler(PagePool& pool, const ScheduleLimits& limits);

  const ScheduleLimits& limits() const { return limits_; }
  // Of the passes to come.
  void set_max_pass_tokens(int64_t count) { limits_.max_pass_tokens = count; }
  bool is_idle() const { return waiting_.empty() && running_.empty(); }
  int64_t num_running() const { return std::ssize(running_); }
  int64_t num_waiting() const { return std::ssize(waiting_); }

  // It waits behind those that wait. Ids ascend. Requires that alone it fits the pool to its end,
  // and num_forks < max_running; ids behind its own are for its forks.
  void add(std::unique_ptr<Sequence> sequence);

  // The next pass; empty only when idle. The caller runs it, and adds each part's count to
  // num_cached. Pages that a part writes to are its sequence's alone.
  Pass next();

  // The fork of a running sequence whose prompt is cached whole begins to run, sharing its pages.
  void add_fork(const Sequence& parent, std::unique_ptr<Sequence> fork);
  // It gives its pages back and is no longer of this.
  std::unique_ptr<Sequence> remove(const Sequence& sequence);
  // All running sequences give their pages back and wait.
  void preempt_all();
  // Running and waiting ones.
  std::vector<Sequence*> sequences() const;

 private:
  using Owned = std::unique_ptr<Sequence>;

  void run_part(Sequence& sequence, int64_t count, Pass& pass);
  int64_t missing_pages(const Sequence& sequence, int64_t num_tokens) const;
  bool writes_to_shared_page(const Sequence& sequence) const;
  bool make_room(const Sequence& sequence, int64_t num_tokens, Pass& pass);
  void preempt_last();
  void give_pages_back(Sequence& sequence);
  void give_unseen_pages_back(Sequence& sequence);
  struct Demand {
    int64_t sequences = 0, pages = 0;
    void add(const Demand& more) {
      sequences += more.sequences;
      pages += more.pages;
    }
  };
  static Demand demand_of(const Sequence& sequence);
  void admit(Pass& pass);

  PagePool& pool_;
  ScheduleLimits limits_;
  std::vector<Owned> running_;  // by id
  std::deque<Owned> waiting_;   // by id
};

// Pages for so many tokens.
int64_t pages_for(int64_t num_tokens);

}  // namespace tessera
