#include "client/cli/progress.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/event_printer.h"
#include "client/cli/format.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

v1::Event step_event(int step, double seconds) {
  v1::Event event;
  event.set_revision(step);
  v1::StepMetrics& metrics = *event.mutable_step();
  metrics.set_step(step);
  metrics.set_total_steps(200);
  metrics.set_loss(4.32109);
  metrics.set_grad_norm(1.5);
  metrics.set_learning_rate(1e-3);
  metrics.set_num_tokens(1000 * step);
  metrics.set_tokens_per_second(12345);
  metrics.mutable_time()->set_total_seconds(seconds);
  return event;
}

v1::Event memory_event(int rank, int64_t peak) {
  v1::Event event;
  v1::MemorySnapshot& memory = *event.mutable_memory();
  memory.set_rank(rank);
  memory.set_current_bytes(80 * kMiB);
  memory.set_peak_bytes(peak);
  memory.set_rss_bytes(200 * kMiB);
  memory.set_peak_rss_bytes(300 * kMiB);
  const auto add = [&memory](const char* name, int64_t current, int64_t at_peak) {
    v1::OwnerBytes& owner = *memory.add_owners();
    owner.set_owner(name);
    owner.set_current_bytes(current);
    owner.set_at_peak_bytes(at_peak);
  };
  add("parameters", 20 * kMiB, 20 * kMiB);
  add("optimizer", 40 * kMiB, 40 * kMiB);
  add("activations", 0, peak - 70 * kMiB);
  add("gradients", 20 * kMiB, 10 * kMiB);
  add("kv_cache", 0, 0);
  return event;
}

v1::Event state_event(v1::Job::State state, const std::string& reason) {
  v1::Event event;
  event.mutable_state()->set_state(state);
  event.mutable_state()->set_reason(reason);
  return event;
}

v1::Event log_event(int rank, v1::LogLine::Severity severity, const std::string& text) {
  v1::Event event;
  event.mutable_log()->set_rank(rank);
  event.mutable_log()->set_severity(severity);
  event.mutable_log()->set_text(text);
  return event;
}

TEST(FormatTest, Durations) {
  EXPECT_EQ(format_duration(-1), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m 00s");
  EXPECT_EQ(format_duration(3 * 60 + 5), "3m 05s");
  EXPECT_EQ(format_duration(2 * 3600 + 7 * 60), "2h 07m");
  EXPECT_EQ(format_duration(5 * 86400 + 3 * 3600), "5d 03h");
}

TEST(FormatTest, Counts) {
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.6), "1.0k");
  EXPECT_EQ(format_count(34512), "34.5k");
  EXPECT_EQ(format_count(1234567), "1.2M");
}

TEST(FormatTest, TableAlignsColumnsByWidthNotBytes) {
  EXPECT_THAT(format_table({{"JOB", ">STEP", "WHY"}, {"é", "5", "x"}, {"long", "1000", ""}}),
              ElementsAre("JOB   STEP  WHY", "é        5  x", "long  1000"));
}

TEST(FormatTest, ClipKeepsTheTerminalSafe) {
  EXPECT_EQ(clip("a\033[31mb", 80), "a?[31mb");
  EXPECT_EQ(clip("caf\xc3\xa9s", 4), "caf\xc3\xa9");
  EXPECT_EQ(clip("bad\xff", 80), "bad?");
  EXPECT_EQ(clip("abc", 0), "");
}

TEST(ProgressTest, HasNoLineBeforeTheFirstStep) {
  Progress progress;
  progress.add(memory_event(0, 100 * kMiB));
  EXPECT_EQ(progress.line(), "");
}

TEST(ProgressTest, LineHasPaceAndMemory) {
  Progress progress;
  progress.add(step_event(11, 1));
  EXPECT_EQ(progress.line(),
            "step 11/200  loss 4.3211  grad norm 1.500  lr 1.00e-03  12.3k tokens/s  ETA 3m 09s");
  progress.add(memory_event(0, 118 * kMiB));
  progress.add(step_event(12, 3));
  EXPECT_EQ(progress.line(),
            "step 12/200  loss 4.3211  grad norm 1.500  lr 1.00e-03  12.3k tokens/s  ETA 6m 16s  "
            "memory 118.0 MiB (activations 48.0 MiB, optimizer 40.0 MiB, parameters 20.0 MiB)");
}

TEST(ProgressTest, ASlowRankIsNamedUntilItKeepsUp) {
  v1::Event step, slow;
  step.mutable_step()->set_step(3);
  slow.mutable_straggler()->set_rank(2);
  slow.mutable_straggler()->set_node("n1");
  slow.mutable_straggler()->set_busy_seconds(1.5);
  slow.mutable_straggler()->set_median_busy_seconds(1);
  EXPECT_EQ(describe_event(slow),
            "rank 2 on n1 is slow: busy for 1.5 s of a step, the rank in the middle for 1 s");
  Progress progress;
  progress.add(step);
  EXPECT_THAT(progress.line(), ::testing::Not(::testing::HasSubstr("slow")));
  progress.add(slow);
  EXPECT_THAT(progress.line(), ::testing::EndsWith("  slow: rank 2"));
  slow.mutable_straggler()->set_is_over(true);
  progress.add(slow);
  EXPECT_EQ(describe_event(slow), "rank 2 on n1 keeps up again");
  EXPECT_THAT(progress.line(), ::testing::Not(::testing::HasSubstr("slow")));
}

TEST(ProgressTest, PaceIsThatOfTheRecentSteps) {
  Progress progress;
  progress.add(step_event(1, 1000));
  for (int step = 2; step <= 100; ++step) progress.add(step_event(step, 0.5));
  EXPECT_THAT(progress.line(), ::testing::HasSubstr("ETA 50s"));
}

TEST(ProgressTest, LastStepHasNoTimeLeft) {
  Progress progress;
  progress.add(step_event(199, 100));
  progress.add(step_event(200, 101));
  EXPECT_THAT(progress.line(), ::testing::Not(::testing::HasSubstr("ETA")));
}

TEST(ProgressTest, MemoryTableIsThatOfTheLargestRank) {
  Progress progress;
  EXPECT_THAT(progress.memory_table(), IsEmpty());
  progress.add(memory_event(0, 118 * kMiB));
  progress.add(memory_event(1, 128 * kMiB));
  EXPECT_THAT(progress.memory_table(), ElementsAre("memory of rank 1            now    at peak",
                                                   "  activations               0 B   58.0 MiB",
                                                   "  optimizer            40.0 MiB   40.0 MiB",
                                                   "  parameters           20.0 MiB   20.0 MiB",
                                                   "  gradients            20.0 MiB   10.0 MiB",
                                                   "  total                80.0 MiB  128.0 MiB",
                                                   "  process (resident)  200.0 MiB  300.0 MiB"));
}

TEST(ProgressTest, MemoryTableHasTheLimitAndTheHost) {
  Progress progress;
  v1::Event event = memory_event(0, 118 * kMiB);
  v1::MemorySnapshot& memory = *event.mutable_memory();
  memory.clear_owners();
  memory.set_device_limit_bytes(512 * kMiB);
  memory.set_host_current_bytes(7 * kMiB);
  memory.set_host_peak_bytes(9 * kMiB);
  memory.add_host_owners()->set_owner("optimizer");
  memory.mutable_host_owners(0)->set_current_bytes(7 * kMiB);
  memory.mutable_host_owners(0)->set_at_peak_bytes(9 * kMiB);
  memory.mutable_device_allocator()->set_allocated_bytes(90 * kMiB);
  memory.mutable_device_allocator()->set_reserved_bytes(128 * kMiB);
  memory.mutable_device_allocator()->set_fragmentation(0.125);
  memory.mutable_device_allocator()->set_num_retries(2);
  progress.add(event);
  EXPECT_THAT(progress.memory_table(),
              ElementsAre("memory of rank 0                   now    at peak",
                          "  total                       80.0 MiB  118.0 MiB",
                          "  limit                                 512.0 MiB",
                          "  in the allocator's blocks   90.0 MiB",
                          "  reserved by the allocator  128.0 MiB",
                          "  fragmentation                  12.5%  2 retries",
                          "  host: optimizer              7.0 MiB    9.0 MiB",
                          "  host: total                  7.0 MiB    9.0 MiB",
                          "  process (resident)         200.0 MiB  300.0 MiB"));
}

TEST(ProgressTest, ALackOfMemoryShowsWhatWasHeld) {
  Progress progress;
  progress.add(memory_event(0, 118 * kMiB));
  v1::Event event = state_event(v1::Job::FAILED, "");
  v1::OutOfMemory& refusal = *event.mutable_state()->mutable_failure()->mutable_out_of_memory();
  refusal.set_space("device");
  refusal.mutable_memory()->set_rank(1);
  const auto cell = [](v1::MemoryCell& out, const char* owner, const char* block, const char* phase,
                       int64_t bytes) {
    out.set_owner(owner);
    out.set_block(block);
    out.set_phase(phase);
    out.set_bytes(bytes);
  };
  cell(*refusal.mutable_requested(), "activations", "model.layers.3", "backward", 32 * kMiB);
  for (int i = 0; i < 14; ++i) {
    cell(*refusal.add_cells(), "parameters", ("model.layers." + std::to_string(i)).c_str(), "load",
         (20 - i) * kMiB);
  }
  progress.add(event);
  const std::vector<std::string> table = progress.memory_table();
  ASSERT_EQ(table.size(), 16u);
  EXPECT_EQ(table[0], "device memory of rank 1  block            allocated in     bytes");
  EXPECT_EQ(table[1], "  parameters             model.layers.0   load          20.0 MiB");
  EXPECT_EQ(table[13], "  the rest                                              15.0 MiB");
  EXPECT_EQ(table[14], "  refused: activations   model.layers.3   backward      32.0 MiB");
  EXPECT_THAT(table[15], ::testing::HasSubstr("tessera plan"));
}

TEST(DescribeEventTest, NamesWhatHappened) {
  EXPECT_EQ(describe_event(state_event(v1::Job::QUEUED, "waits for 2 devices")),
            "QUEUED: waits for 2 devices");
  v1::Event failed = state_event(v1::Job::FAILED, "");
  failed.set_attempt(3);
  failed.mutable_state()->mutable_failure()->set_message("data.train is empty");
  EXPECT_EQ(describe_event(failed), "FAILED (attempt 3): data.train is empty");
  EXPECT_EQ(describe_event(log_event(1, v1::LogLine::OUTPUT, "hello")), "[rank 1] hello");
  EXPECT_EQ(describe_event(log_event(-1, v1::LogLine::WARNING, "slow")), "[service warning] slow");
  v1::Event peak;
  peak.mutable_memory_peak()->set_step(2);
  peak.mutable_memory_peak()->set_peak_bytes(118 * kMiB);
  peak.mutable_memory_peak()->mutable_reached()->set_owner("activations");
  peak.mutable_memory_peak()->mutable_reached()->set_block("model.layers.3");
  peak.mutable_memory_peak()->mutable_reached()->set_phase("backward");
  peak.mutable_memory_peak()->add_cells()->set_owner("head");
  peak.mutable_memory_peak()->mutable_cells(0)->set_bytes(kMiB);
  EXPECT_EQ(describe_event(peak),
            "memory peak of the first 2 steps: 118.0 MiB, reached in backward by activations of "
            "model.layers.3; the largest part: head, 1.0 MiB");
  peak.mutable_memory_peak()->set_host_peak_bytes(40 * kMiB);
  peak.mutable_memory_peak()->add_host_cells()->set_owner("optimizer");
  peak.mutable_memory_peak()->mutable_host_cells(0)->set_bytes(30 * kMiB);
  EXPECT_THAT(
      describe_event(peak),
      ::testing::EndsWith("; in host memory: 40.0 MiB; the largest part: optimizer, 30.0 MiB"));
  peak.mutable_memory_peak()->set_rank(1);
  EXPECT_EQ(describe_event(peak), "") << "one rank's is enough";
  v1::Event trace;
  trace.mutable_trace()->set_step(20);
  trace.mutable_trace()->set_rank(1);
  trace.mutable_trace()->set_path("/out/traces/step-20-rank-1.json");
  EXPECT_EQ(describe_event(trace), "trace of step 20 of rank 1: /out/traces/step-20-rank-1.json");
  v1::Event measured;
  measured.mutable_peak()->set_measured_bytes(110 * kMiB);
  measured.mutable_peak()->set_predicted_bytes(100 * kMiB);
  measured.mutable_peak()->set_device_ratio(1);
  const std::string compared =
      "memory peak so far: 110.0 MiB on rank 0; predicted for the whole run: 100.0 MiB (+10.0%)";
  EXPECT_EQ(describe_event(measured), compared);
  measured.mutable_peak()->set_device_ratio(1.05);
  EXPECT_EQ(describe_event(measured),
            compared + "; earlier jobs on such a device measured 1.05 times as much");
  v1::Event saved;
  saved.mutable_checkpoint()->set_step(50);
  saved.mutable_checkpoint()->set_path("/o/checkpoint-50");
  saved.mutable_checkpoint()->set_bytes(kMiB);
  saved.mutable_checkpoint()->set_seconds(0.25);
  EXPECT_EQ(describe_event(saved), "checkpoint of step 50: /o/checkpoint-50 (1.0 MiB in 0.2s)");
}

struct Printed {
  std::ostringstream out, err;
  Terminal terminal{.out = out, .err = err};
  Progress progress;

  void print(EventPrinter& printer, const v1::Event& event) {
    progress.add(event);
    printer.print(event);
  }
};

TEST(EventPrinterTest, WaitingIsALineAndSoIsItsEnd) {
  Printed printed;
  const auto printer = make_text_printer(printed.terminal, printed.progress);
  v1::Event event;
  event.mutable_waiting()->set_reason("no answer");
  printed.print(*printer, event);
  event.mutable_waiting()->clear_reason();
  printed.print(*printer, event);
  event.mutable_generation()->set_is_wake(true);
  printed.print(*printer, event);
  EXPECT_EQ(printed.out.str(), "waits: no answer\ngoes on\n");
}

TEST(EventPrinterTest, JsonHasEveryMetricEvenWhenZero) {
  Printed printed;
  v1::Event event;
  event.set_revision(7);
  event.mutable_step()->set_step(1);
  make_json_printer(printed.out)->print(event);
  EXPECT_EQ(printed.out.str(),
            R"({"revision":"7","attempt":0,"step":{"step":1,"totalSteps":0,"loss":0,"gradNorm":0,)"
            R"("learningRate":0,"numTokens":"0","tokensPerSecond":0,"epoch":0,"rankTimes":[],)"
            R"("metrics":{}}})"
            "\n");
  EXPECT_EQ(printed.err.str(), "");
}

TEST(EventPrinterTest, ElsewhereThanATerminalEachStepIsALine) {
  Printed printed;
  const auto printer = make_text_printer(printed.terminal, printed.progress);
  printed.print(*printer, state_event(v1::Job::RUNNING, ""));
  printed.print(*printer, memory_event(0, 118 * kMiB));
  printed.print(*printer, step_event(1, 100));
  printed.print(*printer, log_event(0, v1::LogLine::OUTPUT, "a\nb"));
  printer->finish();
  EXPECT_EQ(printed.out.str(),
            "RUNNING\n"
            "step 1/200  loss 4.3211  grad norm 1.500  lr 1.00e-03  12.3k tokens/s  ETA 5h 31m  "
            "memory 118.0 MiB (activations 48.0 MiB, optimizer 40.0 MiB, parameters 20.0 MiB)\n"
            "[rank 0] a?b\n");
}

TEST(EventPrinterTest, OnATerminalTheProgressLineIsRewritten) {
  Printed printed;
  printed.terminal.out_is_tty = true;
  printed.terminal.width = 31;
  const auto printer = make_text_printer(printed.terminal, printed.progress);
  printed.print(*printer, step_event(1, 100));
  printed.print(*printer, log_event(0, v1::LogLine::OUTPUT, "hello"));
  printed.print(*printer, step_event(2, 101));
  printer->finish();
  EXPECT_EQ(printed.out.str(),
            "\r\033[Kstep 1/200  loss 4.3211  grad "
            "\r\033[K[rank 0] hello\nstep 1/200  loss 4.3211  grad "
            "\r\033[Kstep 2/200  loss 4.3211  grad \n");
}

TEST(EventPrinterTest, ColoursOnlyWhereWanted) {
  Printed printed;
  printed.terminal.out_is_tty = true;
  printed.terminal.colour = true;
  const auto printer = make_text_printer(printed.terminal, printed.progress);
  printed.print(*printer, state_event(v1::Job::FAILED, "no"));
  EXPECT_EQ(printed.out.str(), "\r\033[K\033[1;31mFAILED: no\033[0m\n");
}

}  // namespace
}  // namespace tessera::cli
