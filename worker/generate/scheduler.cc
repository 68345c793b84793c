#include "worker/generate/scheduler.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "worker/kernels/cpu_kernels.h"

namespace tessera {

int64_t pages_for(int64_t num_tokens) { return (num_tokens + kPageTokens - 1) / kPageTokens; }

SequenceScheduler::SequenceScheduler(PagePool& pool, const ScheduleLimits& limits)
    : pool_(pool), limits_(limits) {
  TORCH_CHECK(limits.max_running >= 1 && limits.max_running <= limits.max_pass_tokens,
              "a pass has room for a token of each running sequence");
}

void SequenceScheduler::add(std::unique_ptr<Sequence> sequence) {
  waiting_.push_back(std::move(sequence));
}

Pass SequenceScheduler::next() {
  Pass pass;
  for (const Owned& sequence : running_) give_unseen_pages_back(*sequence);
  // By index: the last ones may be preempted on the way. Those that go on by one token come first,
  // so that prompts do not hold them up.
  for (const bool is_prompt : {false, true}) {
    for (size_t i = 0; i < running_.size(); ++i) {
      Sequence& sequence = *running_[i];
      if ((sequence.num_pending() > 1) != is_prompt) continue;
      const int64_t count =
          std::min(sequence.num_pending(), limits_.max_pass_tokens - pass.num_tokens);
      if (count > 0 && make_room(sequence, sequence.num_cached + count, pass))
        run_part(sequence, count, pass);
    }
  }
  if (pass.num_preempted == 0) admit(pass);
  return pass;
}

bool SequenceScheduler::writes_to_shared_page(const Sequence& sequence) const {
  const int64_t page = sequence.num_cached / kPageTokens;
  return page < std::ssize(sequence.pages) && pool_.num_holders(sequence.pages[page]) > 1;
}

int64_t SequenceScheduler::missing_pages(const Sequence& sequence, int64_t num_tokens) const {
  return pages_for(num_tokens) - std::ssize(sequence.pages) +
         (writes_to_shared_page(sequence) ? 1 : 0);
}

// Whether there are pages for its first num_tokens tokens, after preempting what arrived later if
// need be. No part of the pass is lost by that: whoever is in it already arrived earlier, or gives
// its part back.
bool SequenceScheduler::make_room(const Sequence& sequence, int64_t num_tokens, Pass& pass) {
  while (missing_pages(sequence, num_tokens) > pool_.num_free()) {
    Sequence* last = running_.back().get();
    const bool is_itself = last == &sequence;
    const auto part = std::ranges::find(pass.parts, last, &PassPart::sequence);
    if (part != pass.parts.end()) {
      pass.num_tokens -= part->count;
      pass.parts.erase(part);
    }
    preempt_last();
    ++pass.num_preempted;
    if (is_itself) return false;
  }
  return true;
}

void SequenceScheduler::run_part(Sequence& sequence, int64_t count, Pass& pass) {
  if (writes_to_shared_page(sequence)) {
    int32_t& page = sequence.pages[sequence.num_cached / kPageTokens];
    const int32_t own = pool_.take();
    pass.copies.push_back({page, own});
    pool_.give_back(page);
    page = own;
  }
  while (std::ssize(sequence.pages) < pages_for(sequence.num_cached + count))
    sequence.pages.push_back(pool_.take());
  pass.parts.push_back({&sequence, sequence.num_cached, count, count == sequence.num_pending()});
  pass.num_tokens += count;
}

void SequenceScheduler::give_pages_back(Sequence& sequence) {
  for (const int32_t page : sequence.pages) {
    if (page != kNoPage) pool_.give_back(page);
  }
  sequence.pages.clear();
}

// Those that its next token does not see, nor any after it.
void SequenceScheduler::give_unseen_pages_back(Sequence& sequence) {
  if (limits_.window == 0) return;
  const int64_t first_seen = std::max<int64_t>(0, sequence.num_cached + 1 - limits_.window);
  for (int64_t i = first_seen / kPageTokens - 1; i >= 0 && sequence.pages[i] != kNoPage; --i) {
    pool_.give_back(sequence.pages[i]);
    sequence.pages[i] = kNoPage;
  }
}

void SequenceScheduler::preempt_last() {
  Owned last = std::move(running_.back());
  running_.pop_back();
  give_pages_back(*last);
  last->num_cached = 0;
  waiting_.push_front(std::move(last));
}

void SequenceScheduler::preempt_all() {
  while (!running_.empty()) preempt_last();
}

// What a sequence and its forks will take besides what it has: all that it waits to run, and a page
// for the next token of each.
SequenceScheduler::Demand SequenceScheduler::demand_of(const Sequence& sequence) {
  const int64_t pages = pages_for(std::ssize(sequence.tokens)) - std::ssize(sequence.pages);
  return {1 + sequence.num_forks, pages + 1 + sequence.num_forks};
}

void SequenceScheduler::admit(Pass& pass) {
  Demand promised;
  for (const Owned& sequence : running_) {
    // Of those that go on by one token the next page is not promised: they may be preempted.
    const bool is_prompt = sequence->num_pending() > 1 || sequence->num_forks > 0;
    promised.add({demand_of(*sequence).sequences, is_prompt ? demand_of(*sequence).pages : 0});
  }
  while (!waiting_.empty() && pass.num_tokens < limits_.max_pass_tokens) {
    Demand more = promised;
    more.add(demand_of(*waiting_.front()));
    // Alone it runs as long as there are any pages.
    if (!running_.empty() &&
        (more.sequences > limits_.max_running || more.pages > pool_.num_free())) {
      return;
    }
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& sequence = *running_.back();
    run_part(sequence, std::min(sequence.num_pending(), limits_.max_pass_tokens - pass.num_tokens),
             pass);
    promised.add(demand_of(sequence));
  }
}

void SequenceScheduler::add_fork(const Sequence& parent, std::unique_ptr<Sequence> fork) {
  fork->pages = parent.pages;
  fork->num_cached = parent.num_cached;
  for (const int32_t page : fork->pages) {
    if (page != kNoPage) pool_.share(page);
  }
  const auto place = std::ranges::upper_bound(running_, fork->id, {},
                                              [](const Owned& sequence) { return sequence->id; });
  running_.insert(place, std::move(fork));
}

std::unique_ptr<Sequence> SequenceScheduler::remove(const Sequence& sequence) {
  const auto is_it = [&](const Owned& owned) { return owned.get() == &sequence; };
  Owned found;
  if (const auto at = std::ranges::find_if(running_, is_it); at != running_.end()) {
    found = std::move(*at);
    running_.erase(at);
  } else if (const auto in = std::ranges::find_if(waiting_, is_it); in != waiting_.end()) {
    found = std::move(*in);
    waiting_.erase(in);
  }
  TORCH_CHECK(found, "the sequence is not of this scheduler");
  give_pages_back(*found);
  return found;
}

std::vector<Sequence*> SequenceScheduler::sequences() const {
  std::vector<Sequence*> all;
  for (const Owned& sequence : running_) all.push_back(sequence.get());
  for (const Owned& sequence : waiting_) all.push_back(sequence.get());
  return all;
}

}  // namespace tessera
