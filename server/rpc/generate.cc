#include "server/rpc/generate.h"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/rpc/status.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxWaitingBytes = 1 << 20;

absl::StatusOr<std::string> model_of_job(Reader& reader, const std::string& name) {
  const auto record = reader([&](Queries& queries) { return queries.find(name); });
  if (!record.ok()) return record.status();
  const v1::Job& job = record->job();
  if (job.state() == v1::Job::SUCCEEDED)
    return absl::StrCat(job.spec().training().output_dir(), "/final");
  if (job.has_checkpoint()) return job.checkpoint().path();
  return error(absl::StatusCode::kFailedPrecondition, "NO_CHECKPOINT",
               absl::StrCat("job ", job.id(), " has written no checkpoint yet"));
}

// The request with its model named.
absl::StatusOr<v1::GenerateRequest> resolved(Reader& reader, v1::GenerateRequest request) {
  if (request.job().empty() == request.model().empty())
    return invalid_request({{"model", "one of model and job must be given"}});
  if (request.job().empty()) return request;
  try {
    auto model = model_of_job(reader, request.job());
    if (!model.ok()) return model.status();
    request.clear_job();
    request.set_model(*std::move(model));
    return request;
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

// One call. The control loop's thread brings what gRPC's threads take.
class Call final : public grpc::ServerWriteReactor<v1::GenerateReply>,
                   public OpenCall,
                   public std::enable_shared_from_this<Call> {
 public:
  explicit Call(const GenerateContext& context)
      : context_(context), begin_(context.clock.uptime()) {}

  // From here on gRPC owns a share, until OnDone.
  void start(const v1::GenerateRequest& request) {
    self_ = shared_from_this();
    auto named = resolved(context_.reader, request);
    if (!named.ok()) return end(named.status());
    context_.loop.post([self = self_, request = *std::move(named)]() mutable {
      self->number_ = self->context_.control.generate(
          std::move(request), [self](const v1::GeneratedPart& part) { self->take(part); },
          [self](const absl::Status& status) { self->end(status); });
    });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return end(absl::CancelledError("the client is gone"));
    const std::lock_guard lock(mutex_);
    waiting_bytes_ -= waiting_.front().ByteSizeLong();
    waiting_.pop_front();
    is_writing_ = false;
    proceed();
  }

  void OnCancel() override { interrupt(absl::CancelledError("the client is gone")); }

  void interrupt(const absl::Status& status) override {
    end(status);
    cancel();
  }

  void OnDone() override {
    context_.metrics.record("Generate", status_.error_code(), context_.clock.uptime() - begin_);
    self_.reset();
  }

 private:
  void take(const v1::GeneratedPart& part) {
    {
      const std::lock_guard lock(mutex_);
      for (const v1::GenerateReply& reply : part.replies()) {
        waiting_.push_back(reply);
        waiting_bytes_ += reply.ByteSizeLong();
      }
      if (waiting_bytes_ <= kMaxWaitingBytes) return proceed();
    }
    end(error(absl::StatusCode::kResourceExhausted, "CALLER_BEHIND",
              "the caller is more than 1 MiB behind what is generated"));
    cancel();
  }

  // The last status counts for nothing. What waits is written first, where it is OK.
  void end(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    ending_ = status;
    proceed();
  }

  // Requires the lock: writes the next reply, or finishes.
  void proceed() {
    if (is_writing_ || is_finished_) return;
    const bool has_failed = ending_ && !ending_->ok();
    if (!waiting_.empty() && !has_failed) {
      is_writing_ = true;
      StartWrite(&waiting_.front());
    } else if (ending_) {
      is_finished_ = true;
      status_ = to_grpc(*ending_);
      Finish(status_);
    }
  }

  void cancel() {
    context_.loop.post([self = shared_from_this()] {
      if (self->number_ != 0) self->context_.control.cancel_generation(self->number_);
    });
  }

  const GenerateContext context_;
  const absl::Duration begin_;
  std::shared_ptr<Call> self_;
  int64_t number_ = 0;  // of the control loop's thread
  grpc::Status status_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<v1::GenerateReply> waiting_;  // the first is being written
  size_t waiting_bytes_ = 0;
  bool is_writing_ = false;
  bool is_finished_ = false;
  std::optional<absl::Status> ending_;
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateReply>* start_generation(
    const GenerateContext& context, const v1::GenerateRequest& request,
    const std::function<void(std::weak_ptr<OpenCall>)>& opened) {
  const auto call = std::make_shared<Call>(context);
  call->start(request);
  opened(call);
  return call.get();
}

}  // namespace tessera::server
