#include "server/agents/rank_events.h"

namespace tessera::server {

std::optional<v1::Event> event_of_job(const v1::TrainerEvent& event, int rank) {
  v1::Event told;
  if (event.has_time()) *told.mutable_time() = event.time();
  switch (event.kind_case()) {
    case v1::TrainerEvent::kStep:
      *told.mutable_step() = event.step();
      break;
    case v1::TrainerEvent::kMemory:
      *told.mutable_memory() = event.memory();
      told.mutable_memory()->set_rank(rank);
      break;
    case v1::TrainerEvent::kMemoryPeak:
      *told.mutable_memory_peak() = event.memory_peak();
      told.mutable_memory_peak()->set_rank(rank);
      break;
    case v1::TrainerEvent::kLog:
      *told.mutable_log() = event.log();
      told.mutable_log()->set_rank(rank);
      break;
    case v1::TrainerEvent::kCheckpoint:
      *told.mutable_checkpoint() = event.checkpoint();
      break;
    case v1::TrainerEvent::kEval:
      *told.mutable_eval() = event.eval();
      break;
    case v1::TrainerEvent::kWaiting:
      *told.mutable_waiting() = event.waiting();
      break;
    case v1::TrainerEvent::kGeneration:
      *told.mutable_generation() = event.generation();
      told.mutable_generation()->set_rank(rank);
      break;
    case v1::TrainerEvent::kCollectives:
      *told.mutable_collectives() = event.collectives();
      told.mutable_collectives()->set_rank(rank);
      break;
    case v1::TrainerEvent::kTrace:
      *told.mutable_trace() = event.trace();
      told.mutable_trace()->set_rank(rank);
      break;
    case v1::TrainerEvent::kStarted:
    case v1::TrainerEvent::kProgress:
    case v1::TrainerEvent::kFinished:
    case v1::TrainerEvent::kFailed:
    case v1::TrainerEvent::KIND_NOT_SET:
      return std::nullopt;
  }
  return told;
}

}  // namespace tessera::server
