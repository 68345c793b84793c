#include "worker/reward_calls/calls.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "worker/data/content_hash.h"

namespace tessera {
namespace {

constexpr int kMaxResponseBytes = 64 << 20;
constexpr int kFirstReconnectMs = 100;
constexpr int kMostReconnectMs = 2000;
constexpr size_t kMaxMessage = 500;

const char* name_of(grpc::StatusCode code) {
  constexpr const char* kNames[] = {"OK",
                                    "CANCELLED",
                                    "UNKNOWN",
                                    "INVALID_ARGUMENT",
                                    "DEADLINE_EXCEEDED",
                                    "NOT_FOUND",
                                    "ALREADY_EXISTS",
                                    "PERMISSION_DENIED",
                                    "RESOURCE_EXHAUSTED",
                                    "FAILED_PRECONDITION",
                                    "ABORTED",
                                    "OUT_OF_RANGE",
                                    "UNIMPLEMENTED",
                                    "INTERNAL",
                                    "UNAVAILABLE",
                                    "DATA_LOSS",
                                    "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

std::string describe(const grpc::Status& status) {
  return absl::StrCat(name_of(status.error_code()), ": ",
                      status.error_message().substr(0, kMaxMessage));
}

// The same of the same completions, in whatever attempt of the job they are asked about.
std::string request_id(const v1::ScoreRequest& request) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    // Records are maps.
    coded.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&coded);
  }
  ContentHash hash;
  hash.add(bytes);
  return hash.hex();
}

gpr_timespec grpc_time(Retry::Clock::duration from_now) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(from_now).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(us, GPR_TIMESPAN));
}

Retry::Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Retry::Clock::duration>(std::chrono::duration<double>(value));
}

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

}  // namespace

RewardCalls::RewardCalls(rewards::Question question, Reply reply)
    : question_(std::move(question)), reply_(std::move(reply)), random_(std::random_device()()) {
  answer_.set_reward_func(question_.reward_func());
  answer_.mutable_scores()->mutable_values()->Resize(question_.request().completions_size(),
                                                     std::numeric_limits<float>::quiet_NaN());
  make_batches();
  connect();
}

RewardCalls::~RewardCalls() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) delete static_cast<Call*>(tag);
}

void RewardCalls::make_batches() {
  const v1::ScoreRequest& all = question_.request();
  const int size = question_.server().max_batch_size();
  for (int begin = 0; begin < all.completions_size(); begin += size) {
    Batch& batch = batches_.emplace_back();
    batch.begin = begin;
    batch.request.set_job_id(all.job_id());
    batch.request.set_step(all.step());
    batch.request.set_reward_func(all.reward_func());
    for (int i = begin; i < std::min(begin + size, all.completions_size()); ++i)
      *batch.request.add_completions() = all.completions(i);
    batch.request.set_request_id(request_id(batch.request));
    waiting_.push_back(&batch);
  }
}

void RewardCalls::connect() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostReconnectMs);
  // A connection of its own, without what is left of an earlier one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  // Read each time: certificates are replaced while jobs run.
  if (question_.server().has_ca_file()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = contents(question_.server().ca_file());
    credentials = grpc::SslCredentials(options);
  }
  stub_ = v1::RewardService::NewStub(
      grpc::CreateCustomChannel(question_.server().address(), credentials, arguments));
}

void RewardCalls::run() {
  while (num_answered_ < batches_.size() && !is_refused_) {
    start_due();
    if (const std::unique_ptr<Call> call = next_ended()) take(*call);
    if (!is_refused_) tell_waiting();
  }
  if (!is_refused_) reply_(answer_);
}

void RewardCalls::start_due() {
  const auto now = Clock::now();
  std::vector<Batch*> later;
  for (Batch* batch : waiting_) {
    if (num_calls_ < question_.server().max_concurrent_calls() && batch->due <= now) {
      start(*batch);
    } else {
      later.push_back(batch);
    }
  }
  waiting_ = std::move(later);
}

void RewardCalls::start(Batch& batch) {
  auto call = std::make_unique<Call>();
  call->batch = &batch;
  call->context.set_deadline(grpc_time(seconds(question_.server().timeout_seconds())));
  call->reader = stub_->PrepareAsyncScore(&call->context, batch.request, &queue_);
  call->reader->StartCall();
  call->reader->Finish(&call->response, &call->status, call.get());
  call.release();
  ++num_calls_;
}

std::unique_ptr<RewardCalls::Call> RewardCalls::next_ended() {
  gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
  if (!waiting_.empty() && num_calls_ < question_.server().max_concurrent_calls()) {
    const auto due = [](const Batch* batch) { return batch->due; };
    until = grpc_time(std::ranges::min(waiting_, {}, due)->due - Clock::now());
  }
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) return nullptr;
  --num_calls_;
  return std::unique_ptr<Call>(static_cast<Call*>(tag));
}

void RewardCalls::take(const Call& call) {
  switch (call.status.error_code()) {
    case grpc::StatusCode::OK:
      return take_scores(call);
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNIMPLEMENTED:
      return refuse(absl::StrCat("whose server answered ", describe(call.status)));
    default:
      return try_again(call);
  }
}

void RewardCalls::take_scores(const Call& call) {
  const int given = call.response.scores_size();
  const int wanted = call.batch->request.completions_size();
  if (given != wanted) {
    return refuse(absl::StrCat("whose server gave ", given, " scores for ", wanted,
                               " completions, must give one for each"));
  }
  for (int i = 0; i < given; ++i) {
    const v1::Score& score = call.response.scores(i);
    if (!score.has_value()) continue;
    const auto value = static_cast<float>(score.value());
    if (!std::isfinite(value)) {
      return refuse(absl::StrCat("whose server gave the score ", score.value(),
                                 ", must give finite ones, or none for what cannot be judged"));
    }
    answer_.mutable_scores()->set_values(call.batch->begin + i, value);
  }
  call.batch->failing_since.reset();
  ++num_answered_;
}

void RewardCalls::try_again(const Call& call) {
  Batch& batch = *call.batch;
  const auto now = Clock::now();
  if (!batch.failing_since) batch.failing_since = now;
  failure_ = describe(call.status);
  const double most = question_.server().max_wait_seconds();
  if (now - *batch.failing_since >= seconds(most)) {
    return refuse(absl::StrCat("whose server did not answer for ", most,
                               " seconds, must do so within max_wait_seconds (", failure_, ")"));
  }
  // What does not answer may be a connection to a machine that is gone.
  if (call.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) connect();
  batch.due = std::min(now + batch.retry.next_pause(random_), *batch.failing_since + seconds(most));
  waiting_.push_back(&batch);
}

void RewardCalls::tell_waiting() {
  const bool is_failing = std::ranges::any_of(
      batches_, [](const Batch& batch) { return batch.failing_since.has_value(); });
  // Messages have times and ports in them; codes do not.
  const std::string code = is_failing ? failure_.substr(0, failure_.find(':')) : "";
  if (code == told_) return;
  told_ = code;
  rewards::Answer answer;
  answer.set_reward_func(question_.reward_func());
  answer.set_waiting(is_failing ? absl::StrCat("whose server does not answer (", failure_,
                                               "); it is asked again for up to ",
                                               question_.server().max_wait_seconds(), " seconds")
                                : "");
  reply_(answer);
}

void RewardCalls::refuse(const std::string& rest) {
  is_refused_ = true;
  rewards::Answer answer;
  answer.set_reward_func(question_.reward_func());
  answer.set_refusal(rest);
  reply_(answer);
}

}  // namespace tessera
