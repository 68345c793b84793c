// The states of a job and the moves between them. Pure: the table is the whole truth.
#pragma once

#include <string_view>

#include "tessera/v1/coordinator.pb.h"

namespace tessera::server {

// Whether a job may go from one state to the other. A new job starts from STATE_UNSPECIFIED.
bool can_transition(v1::Job::State from, v1::Job::State to);

// SUCCEEDED, FAILED or CANCELLED: nothing follows.
bool is_terminal(v1::Job::State state);

// Processes of the job may exist, and its devices are taken.
bool holds_devices(v1::Job::State state);

std::string_view state_name(v1::Job::State state);

}  // namespace tessera::server
