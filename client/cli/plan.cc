#include "client/cli/plan.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "client/cli/answer.h"
#include "client/cli/event_printer.h"
#include "client/cli/plan_printer.h"
#include "client/cpp/client.h"
#include "client/cpp/job_file.h"

namespace tessera::cli {
namespace {

v1::PlanRequest request_for(const v1::JobSpec& written, const PlanCommand& command) {
  v1::PlanRequest request;
  *request.mutable_spec() = written;
  if (command.world_size) request.set_world_size(*command.world_size);
  if (!command.device.empty()) request.set_device(command.device);
  if (!command.device_memory.empty()) request.set_device_memory(command.device_memory);
  return request;
}

absl::StatusOr<v1::PlanJobResponse> plan_by_service(const Session& session,
                                                    const v1::PlanRequest& request) {
  auto client = session.connect();
  if (!client.ok()) return client.status();
  return client->plan(request, session.stop);
}

absl::StatusOr<v1::PlanJobResponse> plan_here(const Session& session,
                                              const v1::PlanRequest& request,
                                              const std::filesystem::path& trainer) {
  std::string json;
  const absl::Status status =
      run_for_answer({.program = trainer, .arguments = {"--plan", "--input", "/dev/stdin"}},
                     request, session.stop, [&](google::protobuf::io::ZeroCopyInputStream& stream) {
                       const void* data = nullptr;
                       for (int size = 0; stream.Next(&data, &size);) {
                         json.append(static_cast<const char*>(data), static_cast<size_t>(size));
                       }
                     });
  if (!status.ok()) return status;
  v1::PlanJobResponse response;
  if (!google::protobuf::util::JsonStringToMessage(json, response.mutable_plan()).ok()) {
    return absl::InternalError(absl::StrCat(trainer.string(), " printed no plan"));
  }
  if (!response.plan().has_failure()) return response;
  const v1::Failure& failure = response.plan().failure();
  return failure.kind() == v1::Failure::USER ? absl::InvalidArgumentError(failure.message())
                                             : absl::InternalError(failure.message());
}

}  // namespace

ExitCode plan_job(const Session& session, const PlanCommand& command) {
  const JobFile job = read_job_file(command.job_file);
  if (!job.errors.empty()) {
    print_errors(session.terminal, job.errors);
    return kUsage;
  }
  const v1::PlanRequest request = request_for(job.written, command);
  const bool is_served = !session.given_address.empty() || session.dir.is_up();
  const auto response =
      is_served ? plan_by_service(session, request) : plan_here(session, request, command.trainer);
  if (session.stop.stop_requested()) return kInterrupted;
  if (!response.ok() && is_served) {
    return report_failure(session.terminal, response.status(), session.address());
  }
  if (!response.ok()) {
    print_errors(session.terminal, {std::string(response.status().message())});
    return absl::IsInvalidArgument(response.status()) ? kUsage : kJobFailed;
  }
  if (session.json) {
    session.terminal.out << to_json(*response) << '\n' << std::flush;
  } else {
    print_plan(session.terminal, job.spec.name(), *response);
  }
  return kSucceeded;
}

}  // namespace tessera::cli
