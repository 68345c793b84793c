#include "client/cli/profile.h"

#include "absl/strings/str_cat.h"
#include "client/cli/data_printer.h"
#include "client/cli/event_printer.h"
#include "client/cli/profile_printer.h"
#include "client/cpp/client.h"
#include "client/cpp/status.h"
#include "proto/spec/fields.h"

namespace tessera::cli {

namespace {

void show(const Session& session, const v1::DataProfile& profile) {
  if (session.json) {
    session.terminal.out << to_json(profile) << '\n' << std::flush;
  } else {
    print_profile(session.terminal, profile);
  }
}

// By a machine of the service, whose files they are.
ExitCode profile_elsewhere(const Session& session, const v1::InspectRequest& request) {
  auto client = session.connect();
  if (!client.ok()) {
    return report_failure(session.terminal, client.status(), session.given_address);
  }
  const auto profile = client->profile(request, session.stop);
  if (session.stop.stop_requested()) return kInterrupted;
  if (absl::IsInvalidArgument(profile.status())) {
    std::vector<std::string> mistakes = describe_error(profile.status());
    for (std::string& mistake : mistakes) mistake = name_flag(request.spec(), mistake);
    print_errors(session.terminal, mistakes);
    return kUsage;
  }
  if (!profile.ok()) {
    return report_failure(session.terminal, profile.status(), session.given_address);
  }
  show(session, *profile);
  return kSucceeded;
}

}  // namespace

ExitCode profile_data(const Session& session, const ProfileCommand& command) {
  auto spec = read_data_target(session.terminal, command.data);
  if (!spec) return kUsage;
  // What the defaults say is nobody's wish.
  if (!is_job_file(command.data.target)) {
    spec::set_field(*spec, absl::StrCat("method.", command.data.method, ".max_length"), "0");
  }
  if (command.batch_rows > 0) {
    spec->mutable_training()->set_per_device_train_batch_size(command.batch_rows);
  }
  v1::InspectRequest request;
  *request.mutable_spec() = *std::move(spec);
  request.set_held_out(command.data.held_out);
  request.set_max_documents(command.documents);
  v1::ProfileOptions& options = *request.mutable_profile();
  options.mutable_max_lengths()->Assign(command.max_lengths.begin(), command.max_lengths.end());
  const Terminal& terminal = session.terminal;
  if (!session.given_address.empty()) return profile_elsewhere(session, request);
  return run_data_program(session, request, [&](const v1::InspectReply& reply) {
    if (reply.has_note()) {
      terminal.err << without_controls(reply.note()) << '\n' << std::flush;
    } else {
      show(session, reply.profile());
    }
  });
}

}  // namespace tessera::cli
