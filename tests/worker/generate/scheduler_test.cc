#include "worker/generate/scheduler.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>

namespace tessera {
namespace {

// A scheduler whose passes are run by a model that computes nothing: what a page holds is the
// tokens that were written to it.
class Fixture {
 public:
  Fixture(int64_t num_pages, const ScheduleLimits& limits)
      : pool_(num_pages), scheduler_(pool_, limits), held_(num_pages) {}

  PagePool& pool() { return pool_; }
  SequenceScheduler& scheduler() { return scheduler_; }
  int64_t num_preempted() const { return num_preempted_; }
  int64_t num_copied() const { return num_copied_; }
  int64_t num_finished() const { return num_finished_; }
  // The sequence that the last pass began with.
  int64_t first_of_pass() const { return first_of_pass_; }

  void add(int64_t prompt, int64_t new_tokens, int64_t samples = 1) {
    auto state = std::make_shared<RequestState>();
    for (int64_t i = 0; i < prompt; ++i)
      state->request.prompt.push_back(static_cast<int32_t>(1000 * next_id_ + i));
    state->request.sampling.max_new_tokens = new_tokens;
    auto sequence = std::make_unique<Sequence>();
    sequence->id = next_id_;
    sequence->of = state;
    sequence->num_forks = samples - 1;
    sequence->tokens = state->request.prompt;
    next_id_ += samples;
    scheduler_.add(std::move(sequence));
  }

  // Runs a pass, and checks that it may be run and that pages hold what they should. Sequences that
  // it finished are gone.
  Pass run() {
    Pass pass = scheduler_.next();
    num_preempted_ += pass.num_preempted;
    num_copied_ += std::ssize(pass.copies);
    EXPECT_EQ(pass.parts.empty(), scheduler_.is_idle());
    EXPECT_LE(pass.num_tokens, scheduler_.limits().max_pass_tokens);
    EXPECT_LE(scheduler_.num_running(), scheduler_.limits().max_running);
    for (const PageCopy& copy : pass.copies) held_[copy.to] = held_[copy.from];
    if (!pass.parts.empty()) first_of_pass_ = pass.parts.front().sequence->id;
    std::set<int32_t> written;
    int64_t tokens = 0;
    for (const PassPart& part : pass.parts) {
      tokens += part.count;
      write(part, written);
    }
    EXPECT_EQ(tokens, pass.num_tokens);
    for (const PassPart& part : pass.parts) expect_own_past(part);
    for (const PassPart& part : pass.parts) part.sequence->num_cached += part.count;
    for (const PassPart& part : pass.parts) {
      if (part.samples) sample(*part.sequence);
    }
    expect_pages_are_counted();
    return pass;
  }

 private:
  static constexpr int64_t kPage = 16;

  void write(const PassPart& part, std::set<int32_t>& written) {
    const Sequence& sequence = *part.sequence;
    EXPECT_EQ(part.begin, sequence.num_cached);
    EXPECT_EQ(part.samples, part.begin + part.count == std::ssize(sequence.tokens));
    std::set<int32_t> own;
    for (int64_t t = part.begin; t < part.begin + part.count; ++t) {
      const int32_t page = sequence.pages.at(t / kPage);
      EXPECT_EQ(pool_.num_holders(page), 1);
      own.insert(page);
      held_[page][t % kPage] = sequence.tokens[t];
    }
    for (const int32_t page : own) EXPECT_TRUE(written.insert(page).second);
  }

  void expect_own_past(const PassPart& part) {
    const Sequence& sequence = *part.sequence;
    const int64_t window = scheduler_.limits().window;
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, part.begin + 1 - window);
    for (int64_t t = first; t < part.begin + part.count; ++t)
      ASSERT_EQ(held_[sequence.pages[t / kPage]][t % kPage], sequence.tokens[t]) << "token " << t;
  }

  void expect_pages_are_counted() {
    std::map<int32_t, int32_t> holders;
    for (const Sequence* sequence : scheduler_.sequences()) {
      for (const int32_t page : sequence->pages) {
        if (page != kNoPage) ++holders[page];
      }
    }
    EXPECT_EQ(std::ssize(holders), pool_.size() - pool_.num_free());
    for (const auto& [page, count] : holders) EXPECT_EQ(pool_.num_holders(page), count);
  }

  // Tokens that tell sequences apart.
  void sample(Sequence& sequence) {
    for (int64_t i = 1; i <= sequence.num_forks; ++i) {
      auto fork = std::make_unique<Sequence>();
      fork->id = sequence.id + i;
      fork->of = sequence.of;
      fork->tokens = sequence.tokens;
      fork->tokens.push_back(static_cast<int32_t>(-100 * fork->id));
      if (is_done(*fork)) {
        ++num_finished_;
      } else {
        scheduler_.add_fork(sequence, std::move(fork));
      }
    }
    sequence.num_forks = 0;
    sequence.tokens.push_back(static_cast<int32_t>(-100 * sequence.id - sequence.num_new()));
    if (!is_done(sequence)) return;
    ++num_finished_;
    scheduler_.remove(sequence);
  }

  static bool is_done(const Sequence& sequence) {
    return sequence.num_new() == sequence.request().sampling.max_new_tokens;
  }

  PagePool pool_;
  SequenceScheduler scheduler_;
  std::vector<std::array<int32_t, kPage>> held_;
  int64_t next_id_ = 0;
  int64_t num_preempted_ = 0, num_copied_ = 0, num_finished_ = 0;
  int64_t first_of_pass_ = -1;
};

TEST(Scheduler, TakesPromptsInChunksBesideTokens) {
  Fixture f(64, {.max_pass_tokens = 10, .max_running = 4});
  f.add(4, 20);
  f.add(25, 3);
  std::vector<std::vector<int64_t>> counts;
  for (int i = 0; i < 4; ++i) {
    counts.emplace_back();
    for (const PassPart& part : f.run().parts) counts.back().push_back(part.count);
  }
  EXPECT_EQ(counts, (std::vector<std::vector<int64_t>>{{4, 6}, {1, 9}, {1, 9}, {1, 1}}));
}

TEST(Scheduler, AdmitsNoMoreThanFitsItsPages) {
  Fixture f(5, {.max_pass_tokens = 64, .max_running = 8});
  f.add(16, 2);
  f.add(16, 2);
  f.add(16, 2);
  EXPECT_EQ(f.run().parts.size(), 2u);  // two pages each, as the next token needs another one
  EXPECT_EQ(f.scheduler().num_waiting(), 1);
  while (!f.scheduler().is_idle()) f.run();
  EXPECT_EQ(f.num_preempted(), 0);
  EXPECT_EQ(f.num_finished(), 3);
}

TEST(Scheduler, SharesThePagesOfAPromptAndCopiesTheLastOnly) {
  Fixture f(64, {.max_pass_tokens = 64, .max_running = 8});
  f.add(40, 4, 5);  // two whole pages, and half of one
  f.run();
  EXPECT_EQ(f.pool().size() - f.pool().num_free(), 3);
  f.run();
  EXPECT_EQ(f.pool().size() - f.pool().num_free(), 2 + 5);
  EXPECT_EQ(f.num_copied(), 4);  // the last to write keeps the page
  while (!f.scheduler().is_idle()) f.run();
  EXPECT_EQ(f.num_copied(), 4);
  EXPECT_EQ(f.num_finished(), 5);
}

TEST(Scheduler, CopiesNothingWhereAPromptFillsItsPages) {
  Fixture f(64, {.max_pass_tokens = 64, .max_running = 8});
  f.add(32, 20, 6);
  while (!f.scheduler().is_idle()) f.run();
  EXPECT_EQ(f.num_copied(), 0);
  EXPECT_EQ(f.num_finished(), 6);
}

TEST(Scheduler, GivesPagesBackThatNoTokenToComeSees) {
  Fixture f(64, {.max_pass_tokens = 64, .max_running = 8, .window = 20});
  f.add(40, 100, 3);
  for (int pass = 0; !f.scheduler().is_idle(); ++pass) {
    f.run();
    const int64_t held = f.pool().size() - f.pool().num_free();
    // The prompt's three pages; then of each sample those of 20 tokens.
    EXPECT_LE(held, pass == 0 ? 3 : 3 * 3);
  }
  EXPECT_EQ(f.num_finished(), 3);
  EXPECT_EQ(f.num_preempted(), 0);
}

// The pool is as large as the window, and the sequence is not.
TEST(Scheduler, ALongSequenceRunsInThePagesOfItsWindow) {
  Fixture f(4, {.max_pass_tokens = 10, .max_running = 8, .window = 20});
  f.add(100, 200);
  while (!f.scheduler().is_idle()) f.run();
  EXPECT_EQ(f.num_finished(), 1);
  EXPECT_EQ(f.num_preempted(), 0);
}

TEST(Scheduler, TheLatestGiveWay) {
  Fixture f(4, {.max_pass_tokens = 64, .max_running = 8});
  f.add(14, 40);
  f.add(14, 40);
  int64_t passes_of_first = 0;
  while (f.num_finished() == 0) {
    f.run();
    passes_of_first += f.first_of_pass() == 0;
  }
  EXPECT_EQ(passes_of_first, 40);  // its prompt, and each further token: none twice
  EXPECT_GT(f.num_preempted(), 0);
  while (!f.scheduler().is_idle()) f.run();
  EXPECT_EQ(f.num_finished(), 2);
}

TEST(Scheduler, RunsWhateverFitsAlone) {
  std::mt19937 random(11);
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % most); };
  int64_t preempted = 0, copied = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t running = 1 + below(9), pages = 3 + below(12);
    Fixture f(pages, {.max_pass_tokens = running + below(40),
                      .max_running = running,
                      .window = trial % 2 == 0 ? 0 : 1 + below(40)});
    int64_t samples = 0;
    const auto add = [&] {
      const int64_t prompt = 1 + below(16 * pages - 1);
      const int64_t most_new = 16 * pages - prompt;
      const int64_t group = 1 + below(running);
      f.add(prompt, 1 + below(most_new), group);
      samples += group;
    };
    for (int i = 0; i < 4; ++i) add();
    for (int pass = 0; !f.scheduler().is_idle(); ++pass) {
      ASSERT_LT(pass, 20000);
      f.run();
      if (pass < 12 && pass % 3 == 0) add();
      if (pass == 9) f.scheduler().preempt_all();
    }
    EXPECT_EQ(f.num_finished(), samples);
    EXPECT_EQ(f.pool().num_free(), pages);
    preempted += f.num_preempted();
    copied += f.num_copied();
  }
  EXPECT_GT(preempted, 100);
  EXPECT_GT(copied, 100);
}

}  // namespace
}  // namespace tessera
