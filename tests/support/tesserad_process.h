// A tesserad as a process on a directory of its own, to be killed and started again.
//
// Not thread safe, but for address().
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/channel.h>

namespace tessera::support {

// To a coordinator that comes and goes: a channel with connections of its own, which tries again
// soon.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address);

class TesseradProcess {
 public:
  // `directory` exists; below it are the state directory, and what the process says in "log".
  TesseradProcess(std::string program, std::filesystem::path directory,
                  std::vector<std::string> flags = {});
  // Kills it where it still runs. The directory stays.
  ~TesseradProcess();
  TesseradProcess(const TesseradProcess&) = delete;
  TesseradProcess& operator=(const TesseradProcess&) = delete;

  // Does not wait for it to serve. Throws std::system_error. Requires: it does not run.
  void start();
  // Whether its Unix socket takes connections within `patience`.
  bool await_serving(std::chrono::seconds patience = std::chrono::seconds(30)) const;
  // SIGKILL, and reaps it. Nothing where it does not run.
  void crash();
  // SIGTERM; gives the exit code, -1 after a signal. Requires: it runs.
  int stop();
  // Whether it runs; an end is left for ended() to tell.
  bool runs() const;
  // The exit code, reaped, if it has ended by itself since start(): -1 by a signal.
  std::optional<int> ended();
  // What it has written to its standard error.
  std::string log() const;

  std::filesystem::path state_dir() const { return directory_ / "state"; }
  std::filesystem::path database() const { return state_dir() / "tessera.db"; }
  std::string address() const { return "unix:" + (state_dir() / "tesserad.sock").string(); }
  // Of /proc, of the process that runs.
  int64_t resident_bytes() const;
  std::chrono::duration<double> cpu_time() const;

 private:
  const std::string program_;
  const std::filesystem::path directory_;
  const std::vector<std::string> flags_;
  pid_t pid_ = -1;
};

}  // namespace tessera::support
