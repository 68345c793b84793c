#include "client/cli/import.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cpp/job_file.h"
#include "client/trl/import.h"

namespace tessera::cli {
namespace {

// None, with a line in `errors`: it cannot be read, or is larger than a job file may be.
std::optional<trl::ConfigFile> read(const std::string& path, std::vector<std::string>& errors) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(kMaxJobFileBytes + 1, '\0');
  const bool opened = stream.good() && !std::filesystem::is_directory(path);
  if (opened) stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!opened || stream.bad()) {
    errors.push_back(absl::StrCat(
        path, ": cannot be read: ",
        std::filesystem::is_directory(path) ? "it is a directory" : std::strerror(errno)));
    return std::nullopt;
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxJobFileBytes) {
    errors.push_back(absl::StrCat(path, ": is larger than ", kMaxJobFileBytes, " bytes"));
    return std::nullopt;
  }
  return trl::ConfigFile{path, text};
}

}  // namespace

void add_import(CLI::App& app, ImportCommand& command) {
  CLI::App* import = app.add_subcommand(
      "import", "Make a job file of a configuration of TRL's command line, and one of accelerate");
  import->add_option("CONFIG", command.config, "The YAML that `trl sft --config` takes")
      ->required();
  import
      ->add_option("--method", command.method,
                   "The command of TRL that it is for; default: the one that has all of its keys")
      ->check(CLI::IsMember({"sft", "dpo", "kto", "reward", "grpo", "rloo"}));
  import->add_option("--accelerate", command.accelerate,
                     "accelerate's configuration: FSDP, DeepSpeed, ranks, context parallelism");
  import->add_option("--output,-o", command.output, "Write it to this file; default: to stdout");
  import->add_option("--model", command.model,
                     "A directory, in place of the model that the configuration names");
  import->add_option("--train", command.train,
                     "Documents, in place of its data sets; may be given several times");
  import->add_option("--eval", command.eval,
                     "Held-out documents, likewise; may be given several times");
  import
      ->add_option("--device", command.device, "Kind of device; default: cuda, unless it says cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  import->add_option("--reward-server", command.reward_server,
                     "HOST:PORT of a server of tessera.rewards, for reward functions in Python");
}

ExitCode run_import(const Terminal& terminal, const ImportCommand& command) {
  std::vector<std::string> errors;
  trl::ImportOptions options{.method = command.method,
                             .config = {},
                             .accelerate = std::nullopt,
                             .directory = std::filesystem::current_path(),
                             .model = command.model,
                             .train = command.train,
                             .eval = command.eval,
                             .device = command.device,
                             .reward_server = command.reward_server};
  if (const auto config = read(command.config, errors)) options.config = *config;
  if (!command.accelerate.empty()) options.accelerate = read(command.accelerate, errors);
  if (errors.empty()) {
    trl::Imported imported = trl::import_config(options);
    errors = std::move(imported.errors);
    if (errors.empty() && command.output.empty()) {
      terminal.out << imported.job_file << std::flush;
    } else if (errors.empty()) {
      std::ofstream file(command.output, std::ios::binary);
      file << imported.job_file << std::flush;
      if (!file) {
        errors.push_back(
            absl::StrCat(command.output, ": cannot be written: ", std::strerror(errno)));
      }
    }
  }
  print_errors(terminal, errors);
  return errors.empty() ? kSucceeded : kUsage;
}

}  // namespace tessera::cli
