#include "client/cli/export.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::cli {

ExitCode export_checkpoint(const Terminal& terminal, const ExportOptions& options) {
  std::vector<std::string> arguments{options.trainer.string(), "--export", options.checkpoint,
                                     "--to", options.directory};
  if (!options.model.empty()) arguments.insert(arguments.end(), {"--model", options.model});
  if (!options.dtype.empty()) arguments.insert(arguments.end(), {"--dtype", options.dtype});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  print_errors(terminal, {absl::StrCat("cannot run ", arguments[0], ": ", std::strerror(errno))});
  return kUsage;
}

}  // namespace tessera::cli
