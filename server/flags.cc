#include "server/flags.h"

#include <pwd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace tessera::server {
namespace {

// A positive duration, as in 10s or 1m30s.
CLI::Option* add_duration(CLI::App& app, const std::string& name, absl::Duration& value,
                          const std::string& help) {
  const auto parse = [&value](const std::string& text) {
    return absl::ParseDuration(text, &value) && value > absl::ZeroDuration();
  };
  return app
      .add_option_function<std::string>(
          name,
          [name, parse](const std::string& text) {
            if (!parse(text)) {
              throw CLI::ValidationError(name, "must be a duration above zero, as in 10s or 1m30s");
            }
          },
          help + " (default " + absl::FormatDuration(value) + ")")
      ->type_name("DURATION");
}

uid_t user_id(const std::string& name) {
  uid_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return number;
  if (const passwd* user = ::getpwnam(name.c_str())) return user->pw_uid;
  throw CLI::ValidationError("--http-user",
                             "is \"" + name + "\", must be a user of this machine, or a number");
}

void add_http_flags(CLI::App& app, HttpOptions& http) {
  app.add_option(
         "--http", http.address,
         "Loopback HOST:PORT of the dashboard and /metrics; port 0 picks a free one, which is "
         "written to STATE_DIR/http.port; \"\": off (default 127.0.0.1:0)")
      ->type_name("HOST:PORT");
  app.add_option(
         "--http-name", http.names,
         "A further name that browsers may use for the dashboard, as behind a proxy; may be "
         "repeated")
      ->type_name("NAME");
  app.add_option_function<std::vector<std::string>>(
         "--http-user",
         [&http](const std::vector<std::string>& names) {
           for (const std::string& name : names) http.viewers.push_back(user_id(name));
         },
         "A user of this machine, by name or number, whose programs may read the dashboard and "
         "/metrics without a token, as Prometheus; may be repeated (always: who tesserad runs as)")
      ->type_name("USER");
}

void add_control_flags(CLI::App& app, ControlOptions& control) {
  add_duration(app, "--lease", control.lease.lease, "Silence after which a node is lost");
  add_duration(app, "--fence", control.lease.fence,
               "Silence after which the ranks of a lost node end themselves");
  add_duration(app, "--check-timeout", control.check_timeout,
               "Longest wait for an agent to check a submitted job");
  add_duration(app, "--fair-share-half-life", control.fair_share_half_life,
               "Time after which a project's use of devices counts half as much");
  add_duration(app, "--launcher-poll", control.launch.poll, "Time between questions to a cluster");
  add_duration(app, "--launcher-join-timeout", control.launch.join_timeout,
               "Longest wait for the agents of machines that a cluster gave");
}

void add_store_flags(CLI::App& app, Flags& flags) {
  CLI::Option* store =
      app.add_option(
             "--store", flags.store,
             "Database that several coordinators share, one of which leads: "
             "postgresql://[USER@]HOST[:PORT]/DATABASE, with libpq's parameters after ?, as "
             "in sslmode=verify-full; default: SQLite in the state directory")
          ->type_name("URL");
  app.add_option(
         "--store-password-file", flags.store_password_file,
         "File of its password, which its owner alone may read; default: as PGPASSFILE says")
      ->type_name("FILE")
      ->needs(store);
  app.add_option(
         "--advertise", flags.advertise,
         "Where clients and agents reach this coordinator, which the others tell them while "
         "it leads (default: the first --listen that has a port)")
      ->type_name("ADDR")
      ->needs(store);
  add_duration(app, "--leader-lease", flags.leader_lease,
               "Silence of the leader after which another coordinator takes over")
      ->needs(store);
}

void add_security_flags(CLI::App& app, TlsOptions& tls, SecurityOptions& security) {
  app.add_option("--tls-name", tls.tls_names,
                 "Name or address that clients know this machine by, for its certificate; may be "
                 "repeated (always in it: its host name, localhost, and the hosts of --listen)")
      ->type_name("NAME");
  app.add_option("--tls-cert", tls.tls_cert,
                 "Certificate chain in PEM to show, in place of one of our own authority")
      ->type_name("FILE");
  app.add_option("--tls-key", tls.tls_key, "Its private key, which its owner alone may read")
      ->type_name("FILE");
  app.add_option("--client-ca", tls.client_ca,
                 "Authority of the agents' certificates, in place of our own; they then get none "
                 "here")
      ->type_name("FILE");
  app.add_flag("--insecure-loopback", tls.insecure_loopback,
               "Serve loopback addresses without TLS and take who connects for the local operator: "
               "for tests");
  add_duration(app, "--agent-certificate-lifetime", security.certificate_lifetime,
               "Life of a certificate that an agent gets; it asks for the next one in time");
  app.add_option("--rate-limit", security.calls_per_second,
                 "Calls a second that one client may make over TLS; twice as many at once")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
}

}  // namespace

std::vector<std::string> Flags::addresses(const StateDir& state_dir) const {
  std::vector<std::string> addresses = listen;
  const auto is_unix = [](const std::string& address) {
    return absl::StartsWith(address, "unix:");
  };
  if (std::none_of(listen.begin(), listen.end(), is_unix)) {
    addresses.push_back(state_dir.socket_address());
  }
  return addresses;
}

void add_flags(CLI::App& app, Flags& flags) {
  app.add_option("--state-dir", flags.state_dir,
                 "Directory of the socket, and of the database where --store names no other")
      ->required()
      ->type_name("DIR");
  app.add_option("--listen", flags.listen,
                 "unix:PATH, or HOST:PORT, which is served with TLS; may be repeated. The socket "
                 "STATE_DIR/tesserad.sock is there, too, unless another is named; port 0 picks a "
                 "free one, which is written to STATE_DIR/grpc.port")
      ->type_name("ADDR");
  add_http_flags(app, flags.http);
  add_control_flags(app, flags.control);
  add_security_flags(app, flags.tls, flags.security);
  add_store_flags(app, flags);
  add_launcher_flags(app, flags.launchers);
}

}  // namespace tessera::server
