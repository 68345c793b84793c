#include "server/rpc/redact_events.h"

#include "proto/spec/redact.h"

namespace tessera::server {
namespace {

void redact(v1::Failure& failure) { failure.set_message(spec::redact(failure.message())); }

}  // namespace

void redact_events(v1::SessionRequest& message) {
  if (message.rank_exited().has_failure()) {
    redact(*message.mutable_rank_exited()->mutable_failure());
  }
  if (message.prepared().has_refusal()) redact(*message.mutable_prepared()->mutable_refusal());
  if (message.probed().has_failure()) redact(*message.mutable_probed()->mutable_failure());
  if (!message.has_event_batch()) return;
  for (v1::TrainerEvent& event : *message.mutable_event_batch()->mutable_events()) {
    if (event.has_failed()) redact(*event.mutable_failed());
    if (event.has_log()) event.mutable_log()->set_text(spec::redact(event.log().text()));
    // What another server said.
    if (event.has_waiting()) {
      event.mutable_waiting()->set_reason(spec::redact(event.waiting().reason()));
    }
  }
}

}  // namespace tessera::server
