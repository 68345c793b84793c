// The service, its port, and the clock.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/deadline.h"
#include "client/cli/doctor.h"
#include "client/cli/state_dir.h"

namespace tessera::cli {
namespace {

using Level = Finding::Level;

constexpr std::chrono::milliseconds kAnswerTime{5000};
// An agent's heartbeat is seconds old at most.
constexpr absl::Duration kSkew = absl::Minutes(1);

Finding look_at_loopback() {
  Finding finding{.name = "loopback",
                  .level = Level::kOk,
                  .detail = "ports of 127.0.0.1 can be had",
                  .mend = ""};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound =
      fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (!bound) {
    finding.level = Level::kProblem;
    finding.detail = absl::StrCat("no port of 127.0.0.1 can be had: ", std::strerror(errno));
    finding.mend = "`ip link set lo up`; ranks of a machine meet there";
  }
  if (fd >= 0) close(fd);
  return finding;
}

Finding look_at_nodes(const std::vector<v1::Node>& nodes, const std::string& version) {
  Finding finding{.name = "nodes", .level = Level::kOk, .detail = "", .mend = ""};
  std::vector<std::string> lost;
  std::set<std::string> others;
  int ready = 0;
  for (const v1::Node& node : nodes) {
    if (node.state() != v1::Node::READY) {
      lost.push_back(node.name());
      continue;
    }
    ++ready;
    if (node.version() != version) others.insert(node.version());
  }
  finding.detail = absl::StrCat(ready, " ready");
  if (!others.empty()) {
    finding.level = Level::kWarning;
    finding.detail += absl::StrCat(", some of version ", absl::StrJoin(others, ", "));
    finding.mend = "install one version on all machines";
  }
  if (!lost.empty()) {
    finding.level = Level::kWarning;
    finding.detail += absl::StrCat(", lost: ", absl::StrJoin(lost, ", "));
    finding.mend = "look at tessera-agent there";
  }
  if (ready == 0) {
    finding.level = Level::kProblem;
    finding.mend = "start tessera-agent on a machine; `tessera up` starts one here";
  }
  return finding;
}

// What machines saw last is never of the future, and not long ago.
Finding look_at_clock(const std::vector<v1::Node>& nodes) {
  const absl::Time now = absl::Now();
  Finding finding{.name = "clock",
                  .level = Level::kOk,
                  .detail = absl::FormatTime("%Y-%m-%d %H:%M:%S %z", now, absl::LocalTimeZone()),
                  .mend = ""};
  absl::Duration skew;
  for (const v1::Node& node : nodes) {
    if (node.state() != v1::Node::READY) continue;
    const absl::Time seen = absl::FromUnixSeconds(node.last_seen_time().seconds());
    skew = std::max(skew, absl::AbsDuration(now - seen));
  }
  if (now < absl::FromCivil(absl::CivilYear(2024), absl::UTCTimeZone()) || skew > kSkew) {
    finding.level = Level::kWarning;
    if (skew > kSkew)
      finding.detail += absl::StrCat(", the service's is ", absl::FormatDuration(skew), " away");
    finding.mend = "let systemd-timesyncd or chrony set it: certificates and deadlines go by it";
  }
  return finding;
}

}  // namespace

std::vector<Finding> look_at_service(const DoctorOptions& options) {
  std::vector<Finding> findings{look_at_loopback()};
  Finding service{.name = "service", .level = Level::kOk, .detail = "", .mend = ""};
  const StateDir dir(options.state_dir);
  const bool is_given = !options.given_address.empty();
  const std::string address = is_given ? options.given_address : dir.address();
  std::vector<v1::Node> nodes;
  if (!is_given && !dir.is_up()) {
    service.detail = "not running; `tessera up` starts one, `tessera run` one of its own";
    findings.push_back(service);
  } else {
    const Deadline deadline(kAnswerTime);
    auto client = options.connect();
    auto answer = client.ok() ? client->nodes(deadline.token())
                              : absl::StatusOr<std::vector<v1::Node>>(client.status());
    service.detail = absl::StrCat(address, answer.ok() ? " answers" : " does not answer");
    if (!answer.ok()) {
      service.level = Level::kProblem;
      service.detail += absl::StrCat(": ", answer.status().message());
      service.mend = is_given ? "look at tesserad there, and at --address"
                              : "look at tesserad's output; end `tessera up` and start it again";
    }
    findings.push_back(service);
    if (answer.ok()) {
      nodes = std::move(*answer);
      findings.push_back(look_at_nodes(nodes, options.version));
    }
  }
  findings.push_back(look_at_clock(nodes));
  return findings;
}

}  // namespace tessera::cli
