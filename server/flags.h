// tesserad's command line.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/time/time.h"
#include "server/agents/control.h"
#include "server/launchers/launcher_flags.h"
#include "server/security/security.h"
#include "server/security/tls.h"
#include "server/state_dir.h"
#include "server/web/http_server.h"

namespace tessera::server {

// What tesserad is told to be.
struct Flags {
  std::string state_dir;
  std::vector<std::string> listen;
  HttpOptions http{.address = "127.0.0.1:0", .names = {}, .viewers = {}};
  ControlOptions control;
  TlsOptions tls;
  SecurityOptions security;
  LauncherFlags launchers;
  // A URL of PostgreSQL. Empty: SQLite in the state directory.
  std::string store;
  std::string store_password_file;
  std::string advertise;
  absl::Duration leader_lease = absl::Seconds(10);

  // The socket of the state directory is there for this machine, whatever else is listened on.
  std::vector<std::string> addresses(const StateDir& state_dir) const;
};

// Parsing throws CLI::ParseError with the flag that is wrong.
void add_flags(CLI::App& app, Flags& flags);

}  // namespace tessera::server
