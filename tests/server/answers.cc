#include "tests/server/answers.h"

#include <utility>

#include <gtest/gtest.h>

namespace tessera::server {

v1::Plan plan_of(int64_t chosen_bytes) {
  v1::Plan plan;
  plan.mutable_as_written()->set_peak_bytes(100 * kMiB);
  plan.mutable_as_written()->set_world_size(1);
  plan.mutable_as_written()->set_device("cpu");
  plan.set_device_memory_bytes(80 * kMiB);
  plan.set_num_rehearsed(7);
  v1::Alternative& inexact = *plan.add_alternatives();
  inexact.set_title("optimizer states in 8 bits");
  inexact.mutable_rehearsal()->set_peak_bytes(70 * kMiB);
  inexact.set_saved_bytes(30 * kMiB);
  inexact.set_time_ratio(1.1);
  inexact.set_fits(true);
  if (chosen_bytes == 0) return plan;
  v1::Alternative& choice = *plan.mutable_choice();
  choice.set_title("microbatches of 1 row, 8 a step");
  choice.mutable_rehearsal()->set_peak_bytes(chosen_bytes);
  choice.set_time_ratio(1.25);
  for (const auto& [field, value] : {std::pair("training.per_device_train_batch_size", "1"),
                                     {"training.gradient_accumulation_steps", "8"}}) {
    v1::FieldChange& change = *choice.add_changes();
    change.set_field(field);
    change.set_value(value);
  }
  return plan;
}

void answer_check(Agent& agent, int64_t bytes) {
  agent.answer_probe([&](const v1::Probe&, v1::Probed& probed) {
    v1::Rehearsal& rehearsal = *probed.mutable_checked()->mutable_rehearsal();
    rehearsal.set_peak_bytes(bytes);
    rehearsal.set_device("cpu");
  });
}

v1::PlanRequest answer_plan(Agent& agent, const v1::Plan& plan) {
  return agent
      .answer_probe([&](const v1::Probe&, v1::Probed& probed) { *probed.mutable_planned() = plan; })
      .plan();
}

v1::PlanRequest answer_plan(Agent& agent, int64_t chosen_bytes) {
  return answer_plan(agent, plan_of(chosen_bytes));
}

void break_down(Agent& agent) {
  agent.answer_probe([](const v1::Probe&, v1::Probed& probed) {
    probed.mutable_failure()->set_kind(v1::Failure::BUG);
    probed.mutable_failure()->set_message("it broke");
  });
}

void leave_unanswered(Agent& agent) {
  agent.answer_probe([](const v1::Probe&, v1::Probed& probed) { probed.set_unanswered("busy"); });
}

v1::Job accepted(Service& service, Agent& agent, const v1::JobSpec& spec) {
  const Submitted submitted = submit_while(service, spec, [&] { answer_check(agent, 100 * kMiB); });
  EXPECT_TRUE(submitted.status.ok()) << submitted.status.error_message();
  return submitted.job;
}

std::string text_of(const std::vector<v1::Event>& events) {
  std::string text;
  for (const v1::Event& event : events) {
    text += event.log().text() + event.plan().reason() + event.state().reason() + "\n";
  }
  return text;
}

}  // namespace tessera::server
