#include "server/agents/lasting_control.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/database.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

// The failure, and what it means to who asked. Its reason stays.
absl::Status refusal(const DatabaseLost& failure) {
  const absl::Status why = to_status(failure);
  absl::Status status(why.code(),
                      absl::StrCat("the coordinator cannot write its state, ", why.message(),
                                   "; it takes no changes until it can, running jobs go on"));
  why.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { status.SetPayload(type, payload); });
  return status;
}

}  // namespace

LastingControl::LastingControl(std::unique_ptr<Store> store, OpenStore reopen, Make make,
                               const Clock& clock)
    : store_(std::move(store)), reopen_(std::move(reopen)), make_(std::move(make)), clock_(clock) {
  make_(control_, *store_);
}

bool LastingControl::failed(const std::exception& failure) {
  const auto* lost = dynamic_cast<const DatabaseLost*>(&failure);
  // Without a control it failed while one was being made anew.
  if (lost == nullptr || !control_) return false;
  next_try_ = clock_.uptime() + kRetryInterval;
  if (!control_->outage().ok()) return true;
  spdlog::error("{}; no changes are taken until it can be written, jobs go on under their agents",
                lost->what());
  outage_begin_ = clock_.uptime();
  control_->begin_outage(refusal(*lost));
  // With its transaction, and the lock that it may still have. The control will not touch it.
  store_.reset();
  return true;
}

absl::StatusOr<std::unique_ptr<Store>> LastingControl::try_disk() {
  try {
    return reopen_();
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

void LastingControl::tick() {
  if (control_->outage().ok()) return control_->tick();
  if (clock_.uptime() < next_try_) return;
  next_try_ = clock_.uptime() + kRetryInterval;
  auto store = try_disk();
  if (!store.ok()) {
    spdlog::debug("still no disk: {}", std::string(store.status().message()));
    return;
  }
  spdlog::info("the state can be written again after {}: going on from what is stored",
               absl::FormatDuration(clock_.uptime() - outage_begin_));
  control_->end_sessions(error(absl::StatusCode::kUnavailable, "STATE_RELOADED",
                               "the coordinator goes on from what it has stored"));
  control_.reset();
  store_ = *std::move(store);
  make_(control_, *store_);
}

}  // namespace tessera::server
