// What a test's agent answers to questions about jobs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/service.h"

namespace tessera::server {

inline constexpr int64_t kMiB = 1 << 20;

// What an agent's trainer says of 80 MiB: 100 MiB as written; with one row a microbatch the bytes
// chosen, 0: no choice.
v1::Plan plan_of(int64_t chosen_bytes);

// Of the agent's next probe.
void answer_check(Agent& agent, int64_t bytes);
v1::PlanRequest answer_plan(Agent& agent, const v1::Plan& plan);
v1::PlanRequest answer_plan(Agent& agent, int64_t chosen_bytes);
void break_down(Agent& agent);
void leave_unanswered(Agent& agent);

// A job that is checked to need 100 MiB.
v1::Job accepted(Service& service, Agent& agent, const v1::JobSpec& spec);

// All that the events say, a line each.
std::string text_of(const std::vector<v1::Event>& events);

}  // namespace tessera::server
