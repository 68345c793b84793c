#include "tests/worker/agent/fake_coordinator.h"

#include <algorithm>

#include "worker/agent/stream_tail.h"

namespace tessera::agent {

void FakeCoordinator::start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(target(), grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

void FakeCoordinator::stop() {
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void FakeCoordinator::send(v1::SessionResponse message) {
  std::lock_guard lock(mutex_);
  if (stream_) stream_->Write(message);
}

void FakeCoordinator::forget(const v1::RunId& run) {
  std::lock_guard lock(mutex_);
  forgotten_.emplace(run.job_id(), run.attempt());
}

void FakeCoordinator::abort_session() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void FakeCoordinator::be_deaf(bool deaf) {
  std::lock_guard lock(mutex_);
  deaf_ = deaf;
}

void FakeCoordinator::hold_acks() {
  std::lock_guard lock(mutex_);
  acks_held_ = true;
}

std::vector<v1::SessionRequest> FakeCoordinator::received() {
  std::lock_guard lock(mutex_);
  return received_;
}

std::vector<v1::TrainerEvent> FakeCoordinator::events(const v1::RunId& run, int rank,
                                                      v1::RankStream stream) {
  std::lock_guard lock(mutex_);
  return committed_[{run.job_id(), run.attempt(), rank, stream}].events;
}

std::vector<std::string> FakeCoordinator::violations() {
  std::lock_guard lock(mutex_);
  return violations_;
}

bool FakeCoordinator::await(const std::function<bool()>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kAwaitLimit, condition);
}

bool FakeCoordinator::await_message(const std::function<bool(const v1::SessionRequest&)>& match,
                                    int count) {
  return await([&] { return std::ranges::count_if(received_, match) >= count; });
}

grpc::Status FakeCoordinator::Session(grpc::ServerContext* context, Stream* stream) {
  v1::SessionRequest request;
  if (!stream->Read(&request) || !request.has_hello()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "no hello"};
  }
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return {grpc::StatusCode::ABORTED, "taken"};
    stream->Write(welcome(request.hello()));
    stream_ = stream;
    received_.push_back(request);
    changed_.notify_all();
  }
  while (stream->Read(&request)) {
    std::lock_guard lock(mutex_);
    if (request.has_event_batch()) {
      commit(request.event_batch());
    } else if (request.has_heartbeat()) {
      v1::SessionResponse answer;
      answer.mutable_heartbeat_ack()->set_number(request.heartbeat().number());
      if (!deaf_) stream->Write(answer);
    } else {
      received_.push_back(request);
    }
    changed_.notify_all();
    if (aborted_) break;
  }
  std::lock_guard lock(mutex_);
  stream_ = nullptr;
  return aborted_ ? grpc::Status(grpc::StatusCode::ABORTED, "taken") : grpc::Status::OK;
}

v1::SessionResponse FakeCoordinator::welcome(const v1::Hello& hello) {
  v1::SessionResponse response;
  v1::Welcome& welcome = *response.mutable_welcome();
  welcome.set_epoch(++epoch_);
  welcome.set_lease_ms(300);
  welcome.set_fence_ms(60'000);
  for (const v1::RunId& run : hello.runs()) {
    if (forgotten_.contains({run.job_id(), run.attempt()})) continue;
    *welcome.add_cursors()->mutable_run() = run;
    for (const auto& [key, committed] : committed_) {
      const auto& [job, attempt, rank, stream] = key;
      if (job != run.job_id() || attempt != run.attempt()) continue;
      v1::Cursor& cursor = *welcome.add_cursors();
      *cursor.mutable_run() = run;
      cursor.set_rank(rank);
      cursor.set_stream(static_cast<v1::RankStream>(stream));
      cursor.set_offset(committed.offset);
    }
  }
  return response;
}

void FakeCoordinator::commit(const v1::EventBatch& batch) {
  Committed& committed =
      committed_[{batch.run().job_id(), batch.run().attempt(), batch.rank(), batch.stream()}];
  if (batch.begin_offset() != committed.offset || batch.end_offset() <= batch.begin_offset()) {
    violations_.push_back("batch at " + std::to_string(batch.begin_offset()) + " to " +
                          std::to_string(batch.end_offset()) + ", committed " +
                          std::to_string(committed.offset));
    return;
  }
  if (batch.events_size() > kMaxBatchEvents + 1 ||
      batch.end_offset() - batch.begin_offset() > kMaxBatchBytes) {
    violations_.push_back("batch of " + std::to_string(batch.events_size()) + " events");
  }
  committed.offset = batch.end_offset();
  committed.events.insert(committed.events.end(), batch.events().begin(), batch.events().end());
  if (acks_held_) return;
  v1::SessionResponse response;
  v1::Cursor& cursor = *response.mutable_ack()->mutable_cursor();
  *cursor.mutable_run() = batch.run();
  cursor.set_rank(batch.rank());
  cursor.set_stream(batch.stream());
  cursor.set_offset(batch.end_offset());
  stream_->Write(response);
}

}  // namespace tessera::agent
