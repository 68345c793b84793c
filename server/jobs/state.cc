#include "server/jobs/state.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::server {
namespace {

using v1::Job;

// A failed attempt always passes through RESTARTING, where its processes are cleared away; what
// became of them decides between QUEUED and FAILED. An attempt that is stopped at a checkpoint
// passes through STOPPING, and may reach its end there.
constexpr std::array kTransitions{
    std::pair{Job::STATE_UNSPECIFIED, Job::QUEUED},
    std::pair{Job::QUEUED, Job::STARTING},
    std::pair{Job::QUEUED, Job::SUSPENDED},
    std::pair{Job::QUEUED, Job::CANCELLED},
    std::pair{Job::QUEUED, Job::FAILED},
    std::pair{Job::STARTING, Job::RUNNING},
    std::pair{Job::STARTING, Job::RESTARTING},
    std::pair{Job::STARTING, Job::STOPPING},
    std::pair{Job::STARTING, Job::CANCELLING},
    std::pair{Job::RUNNING, Job::RESTARTING},
    std::pair{Job::RUNNING, Job::STOPPING},
    std::pair{Job::RUNNING, Job::CANCELLING},
    std::pair{Job::RUNNING, Job::SUCCEEDED},
    std::pair{Job::RESTARTING, Job::QUEUED},
    std::pair{Job::RESTARTING, Job::SUSPENDED},
    std::pair{Job::RESTARTING, Job::CANCELLING},
    std::pair{Job::RESTARTING, Job::FAILED},
    std::pair{Job::STOPPING, Job::QUEUED},
    std::pair{Job::STOPPING, Job::SUSPENDED},
    std::pair{Job::STOPPING, Job::CANCELLING},
    std::pair{Job::STOPPING, Job::SUCCEEDED},
    std::pair{Job::STOPPING, Job::FAILED},
    std::pair{Job::SUSPENDED, Job::QUEUED},
    std::pair{Job::SUSPENDED, Job::CANCELLED},
    std::pair{Job::SUSPENDED, Job::FAILED},
    std::pair{Job::CANCELLING, Job::CANCELLED},
};

}  // namespace

bool can_transition(Job::State from, Job::State to) {
  return std::find(kTransitions.begin(), kTransitions.end(), std::pair{from, to}) !=
         kTransitions.end();
}

bool is_terminal(Job::State state) {
  return state == Job::SUCCEEDED || state == Job::FAILED || state == Job::CANCELLED;
}

bool holds_devices(Job::State state) {
  return state == Job::STARTING || state == Job::RUNNING || state == Job::RESTARTING ||
         state == Job::STOPPING || state == Job::CANCELLING;
}

std::string_view state_name(Job::State state) { return v1::Job::State_Name(state); }

}  // namespace tessera::server
