#include "client/cli/token.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/event_printer.h"
#include "client/cli/format.h"

namespace tessera::cli {
namespace {

// More seconds than any lifetime may have: the service says what may be.
constexpr int64_t kMaxSeconds = int64_t{1} << 40;

std::optional<int64_t> parse_seconds(const std::string& text) {
  int64_t days = 0;
  if (absl::EndsWith(text, "d") && absl::SimpleAtoi(text.substr(0, text.size() - 1), &days)) {
    return days > 0 && days < kMaxSeconds / 86400 ? std::optional(days * 86400) : std::nullopt;
  }
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration)) return std::nullopt;
  const int64_t seconds = absl::ToInt64Seconds(duration);
  return seconds > 0 && seconds < kMaxSeconds ? std::optional(seconds) : std::nullopt;
}

std::string format_time(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(seconds),
                          absl::LocalTimeZone());
}

std::string state_of(const v1::Credential& credential) {
  if (credential.has_revoke_time()) {
    return absl::StrCat("revoked ", format_time(credential.revoke_time().seconds()));
  }
  const int64_t end = credential.expire_time().seconds();
  if (end <= absl::ToUnixSeconds(absl::Now())) return absl::StrCat("ended ", format_time(end));
  if (credential.has_use_time()) {
    return absl::StrCat("used ", format_time(credential.use_time().seconds()));
  }
  return absl::StrCat("until ", format_time(end));
}

// What it is for: the projects of a client, the node of an agent.
std::string scope_of(const v1::Credential& credential) {
  if (credential.role() == v1::Credential::AGENT) {
    return credential.node().empty() ? "any new node" : credential.node();
  }
  return credential.projects().empty() ? "all projects"
                                       : absl::StrJoin(credential.projects(), ", ");
}

}  // namespace

ExitCode create_token(const Session& session, const TokenOptions& options) {
  v1::CreateTokenRequest request;
  v1::Credential::Role role = v1::Credential::ROLE_UNSPECIFIED;
  if (!v1::Credential::Role_Parse(absl::AsciiStrToUpper(options.role), &role)) {
    print_errors(session.terminal,
                 {absl::StrCat("--role is \"", options.role,
                               "\", must be viewer, submitter, operator or agent")});
    return kUsage;
  }
  const auto seconds = parse_seconds(options.expires);
  if (!seconds) {
    print_errors(session.terminal, {absl::StrCat("--expires is \"", options.expires,
                                                 "\", must be a time, as in 90s, 30m, 1h or 30d")});
    return kUsage;
  }
  request.set_role(role);
  request.set_node(options.node);
  request.set_description(options.description);
  *request.mutable_projects() = {options.projects.begin(), options.projects.end()};
  request.mutable_lifetime()->set_seconds(*seconds);
  auto client = session.connect();
  if (!client.ok()) return report_call(session, client.status());
  const auto created = client->create_token(request, session.stop);
  if (!created.ok()) return report_call(session, created.status());
  session.terminal.out << (session.json ? to_json(*created) : created->secret()) << '\n'
                       << std::flush;
  session.terminal.err << "token " << created->credential().id() << ": "
                       << absl::AsciiStrToLower(options.role) << ", "
                       << scope_of(created->credential()) << ", " << state_of(created->credential())
                       << "; it is shown this once\n"
                       << std::flush;
  return kSucceeded;
}

ExitCode list_tokens(const Session& session) {
  auto client = session.connect();
  if (!client.ok()) return report_call(session, client.status());
  const auto credentials = client->credentials(session.stop);
  if (!credentials.ok()) return report_call(session, credentials.status());
  if (session.json) {
    for (const v1::Credential& credential : *credentials) {
      session.terminal.out << to_json(credential) << '\n';
    }
    session.terminal.out.flush();
    return kSucceeded;
  }
  std::vector<std::vector<std::string>> rows{
      {"ID", "KIND", "ROLE", "FOR", "STATE", "BY", "DESCRIPTION"}};
  for (const v1::Credential& credential : *credentials) {
    rows.push_back(
        {credential.id(), absl::AsciiStrToLower(v1::Credential::Kind_Name(credential.kind())),
         absl::AsciiStrToLower(v1::Credential::Role_Name(credential.role())), scope_of(credential),
         state_of(credential), credential.creator(), clip(credential.description(), 40)});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
  return kSucceeded;
}

ExitCode revoke_token(const Session& session, const std::string& id) {
  auto client = session.connect();
  if (!client.ok()) return report_call(session, client.status());
  const auto revoked = client->revoke(id, session.stop);
  if (!revoked.ok()) return report_call(session, revoked.status());
  session.terminal.out << (session.json ? to_json(*revoked)
                                        : absl::StrCat(revoked->id(), " is ", state_of(*revoked)))
                       << '\n'
                       << std::flush;
  return kSucceeded;
}

}  // namespace tessera::cli
