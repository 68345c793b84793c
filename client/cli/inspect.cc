#include "client/cli/inspect.h"

#include "absl/strings/str_cat.h"
#include "client/cli/data_printer.h"

namespace tessera::cli {

ExitCode inspect_data(const Session& session, const InspectOptions& options) {
  const auto spec = read_data_target(session.terminal, options.data);
  if (!spec) return kUsage;
  if (spec->model().path().empty() && spec->model().tokenizer().empty()) {
    print_errors(session.terminal,
                 {absl::StrCat(options.data.target,
                               " is no job file (.yaml, .yml, .json), and data needs --tokenizer "
                               "DIRECTORY")});
    return kUsage;
  }
  v1::InspectRequest request;
  *request.mutable_spec() = *spec;
  request.set_held_out(options.data.held_out);
  request.set_max_documents(options.documents);
  request.set_first_row(options.first_row);
  request.set_num_rows(options.rows);
  DataPrinter printer(session.terminal, session.json);
  return run_data_program(session, request,
                          [&](const v1::InspectReply& reply) { printer.print(reply); });
}

}  // namespace tessera::cli
