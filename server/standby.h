// A coordinator of several that does not lead: it answers that it does not, and waits for its turn.
#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/clock.h"
#include "server/jobs/leadership.h"
#include "server/jobs/postgres.h"
#include "server/security/tls.h"
#include "server/state_dir.h"
#include "server/web/http_server.h"

namespace tessera::server {

struct StandbyOptions {
  PostgresAddress database;
  absl::Duration lease = absl::Seconds(10);
  // Where clients and agents reach this coordinator. Empty: at the first listener that has a port,
  // else at its Unix socket.
  std::string advertise;
  // unix:PATH or HOST:PORT.
  std::vector<std::string> addresses;
  HttpOptions http;
  TlsOptions tls;
  // Before it serves: whether what the coordinators share lets this one be one of them.
  std::function<absl::Status(Election&)> check;
};

// Of a coordinator that leads.
struct Lead {
  std::unique_ptr<Leadership> leadership;
  std::unique_ptr<Tls> tls;
  // As in the options, with the ports that they came to have.
  std::vector<std::string> addresses;
};

// Serves as a standby until it leads; all ports are free again then. A database that cannot be
// reached is tried for ever. CANCELLED: one of the signals, which are blocked, came first.
// `lost` as in Leadership. Other errors are those of Tls::open and of listening.
absl::StatusOr<Lead> await_leadership(const StandbyOptions& options, const StateDir& dir,
                                      const Clock& clock, const sigset_t& signals,
                                      std::function<void(const std::string&)> lost);

}  // namespace tessera::server
