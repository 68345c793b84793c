// The commands of `tessera` that talk to a service. Each returns the exit code of the process.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "client/cli/state_dir.h"
#include "client/cli/terminal.h"
#include "client/cpp/client.h"

namespace tessera::cli {

// What all commands share: the flags before the command, and the process around it.
struct Session {
  const Terminal& terminal;
  std::stop_token stop;
  StateDir dir;
  // --address; empty: the service of `dir`.
  std::string given_address;
  bool json = false;
  // The folder of this program, where the others are.
  std::filesystem::path programs;
  // As FollowOptions::flags.
  std::string flags;

  // For a service that is given by its address.
  ConnectOptions connect_options;

  std::string address() const { return given_address.empty() ? dir.address() : given_address; }
  absl::StatusOr<Client> connect(Client::Patience patience = {}) const {
    return Client::connect(address(), patience,
                           given_address.empty() ? ConnectOptions{} : connect_options);
  }
};

// Prints what a call failed with; the exit code that it means.
ExitCode report_call(const Session& session, const absl::Status& status);

struct RunOptions {
  std::filesystem::path job_file;
  std::filesystem::path trainer;
  // Written anew with every event, as lines of ProtoJSON. Empty: no such file.
  std::filesystem::path events;
};

ExitCode run_job(const Session& session, const RunOptions& options);

ExitCode submit_job(const Session& session, const std::filesystem::path& job_file);
ExitCode watch_job(const Session& session, const std::string& id);
ExitCode get_job(const Session& session, const std::string& id);
// What a command asks of the job that it names.
using JobCall = absl::StatusOr<v1::Job> (Client::*)(const std::string&, std::stop_token);
// Of Client::cancel, suspend and resume: prints the state that followed.
ExitCode change_job(const Session& session, const std::string& id, JobCall call);
// `states` are names, as in "running"; empty: all.
ExitCode list_jobs(const Session& session, const std::vector<std::string>& states, size_t limit);
ExitCode list_nodes(const Session& session);

struct LogOptions {
  std::string id;
  bool follow = false;
  // Only lines of this rank; -1: the service's own.
  std::optional<int> rank;
};
ExitCode print_logs(const Session& session, const LogOptions& options);

}  // namespace tessera::cli
