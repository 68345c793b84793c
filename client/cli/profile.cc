#include "client/cli/profile.h"

#include "client/cli/data_printer.h"
#include "client/cli/event_printer.h"
#include "client/cli/profile_printer.h"

namespace tessera::cli {

ExitCode profile_data(const Session& session, const ProfileCommand& command) {
  auto spec = read_data_target(session.terminal, command.data);
  if (!spec) return kUsage;
  // What the defaults say is nobody's wish.
  if (!is_job_file(command.data.target)) spec->mutable_method()->mutable_sft()->set_max_length(0);
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
  return run_data_program(session, request, [&](const v1::InspectReply& reply) {
    if (reply.has_note()) {
      terminal.err << without_controls(reply.note()) << '\n' << std::flush;
    } else if (session.json) {
      terminal.out << to_json(reply.profile()) << '\n';
    } else {
      print_profile(terminal, reply.profile());
    }
  });
}

}  // namespace tessera::cli
