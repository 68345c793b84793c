#include "server/standby.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/listening.h"
#include "server/rpc/server.h"
#include "server/rpc/standby_service.h"

namespace tessera::server {
namespace {

// Between two looks at the lease, and two tries of a database that is away.
constexpr absl::Duration kMinPause = absl::Milliseconds(50);
constexpr absl::Duration kMaxPause = absl::Milliseconds(500);
// Calls of health's watchers get this long to end.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(200);

bool is_unix(const std::string& address) { return absl::StartsWith(address, "unix:"); }

// HOST of HOST:PORT, as others may call it.
std::string host_for_others(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  if (host != "0.0.0.0" && host != "[::]") return host;
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

bool is_signalled(const sigset_t& signals, absl::Duration pause) {
  const timespec time = absl::ToTimespec(pause);
  const int signal = ::sigtimedwait(&signals, nullptr, &time);
  if (signal > 0) spdlog::info("{}: shutting down; the leader goes on", strsignal(signal));
  return signal > 0;
}

class Candidate {
 public:
  Candidate(const StandbyOptions& options, const StateDir& dir, const Clock& clock)
      : options_(options),
        dir_(dir),
        clock_(clock),
        election_(std::make_unique<Election>(options.database, options.lease)) {
    service_.set_obstacle("the database was not reached yet");
  }

  ~Candidate() {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  }

  absl::Status start_http() {
    auto http = server::start_http(options_.http, dir_, [this](HttpOptions options) {
      return HttpServer::start_standby(std::move(options), [this] { return service_.status(); });
    });
    if (http.ok()) http_ = *std::move(http);
    return http.status();
  }

  // True: it leads now. Sets `pause` to the time until the next try.
  absl::StatusOr<bool> try_to_lead(absl::Duration& pause) {
    pause = kMaxPause;
    try {
      const Election::View seen = election_->look();
      if (std::exchange(obstacle_, "") != "") spdlog::info("the database answers");
      if (absl::Status status = start_grpc(); !status.ok()) return status;
      service_.set_leader(seen.leader);
      asked_ = boot_time();
      epoch_ = election_->take(seen, self());
      pause = std::clamp(seen.left, kMinPause, kMaxPause);
    } catch (const DatabaseError& failure) {
      if (std::exchange(obstacle_, failure.what()) != failure.what()) {
        spdlog::warn("{}; trying again until it answers", failure.what());
      }
      service_.set_obstacle(failure.what());
    }
    return epoch_.has_value();
  }

  // Requires: it leads.
  Lead lead(std::function<void(const std::string&)> lost) {
    return {std::make_unique<Leadership>(std::move(election_), *epoch_, asked_, std::move(lost)),
            std::move(tls_), bound_addresses()};
  }

 private:
  absl::Status start_grpc() {
    if (server_ != nullptr) return absl::OkStatus();
    if (absl::Status status = options_.check(*election_); !status.ok()) return status;
    auto tls = Tls::open(dir_.path(), options_.tls, options_.addresses, clock_,
                         election_->agree_on_authority(""));
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
    if (const std::string mine = tls_->authority_certificate(); !mine.empty()) {
      if (election_->agree_on_authority(mine) != mine) {
        return absl::UnavailableError("another coordinator made an authority first; start again");
      }
    }
    for (const std::string& address : options_.addresses) {
      listeners_.push_back({address, tls_->listener(address, nullptr)});
    }
    auto server = serve_standby(listeners_, service_);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    spdlog::info("standby at {}; the database is {}", self(), options_.database.name());
    return publish_port(dir_, listeners_);
  }

  std::vector<std::string> bound_addresses() const {
    std::vector<std::string> addresses;
    for (const Listener& listener : listeners_) {
      const std::string host = listener.address.substr(0, listener.address.rfind(':'));
      addresses.push_back(is_unix(listener.address) ? listener.address
                                                    : absl::StrCat(host, ":", listener.port));
    }
    return addresses;
  }

  std::string self() const {
    if (!options_.advertise.empty()) return options_.advertise;
    for (const Listener& listener : listeners_) {
      if (is_unix(listener.address)) continue;
      return absl::StrCat(host_for_others(listener.address), ":", listener.port);
    }
    return listeners_.front().address;
  }

  const StandbyOptions& options_;
  const StateDir& dir_;
  const Clock& clock_;
  StandbyService service_;
  std::unique_ptr<Election> election_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Tls> tls_;
  std::vector<Listener> listeners_;
  std::unique_ptr<grpc::Server> server_;
  // What kept it from the database at the last try.
  std::string obstacle_;
  std::optional<int64_t> epoch_;
  absl::Duration asked_;
};

}  // namespace

absl::StatusOr<Lead> await_leadership(const StandbyOptions& options, const StateDir& dir,
                                      const Clock& clock, const sigset_t& signals,
                                      std::function<void(const std::string&)> lost) {
  Candidate candidate(options, dir, clock);
  if (absl::Status status = candidate.start_http(); !status.ok()) return status;
  absl::Duration pause;
  while (true) {
    const absl::StatusOr<bool> leads = candidate.try_to_lead(pause);
    if (!leads.ok()) return leads.status();
    if (*leads) break;
    if (is_signalled(signals, pause)) return absl::CancelledError("interrupted");
  }
  Lead lead = candidate.lead(std::move(lost));
  spdlog::info("leads, epoch {}", lead.leadership->epoch());
  return lead;
}

}  // namespace tessera::server
