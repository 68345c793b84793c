#include "client/cli/terminal.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/status.h"
#include "proto/spec/redact.h"

namespace tessera::cli {
namespace {

bool is_users_mistake(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) ||
         absl::IsOutOfRange(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnauthenticated(status);
}

// gRPC's words, and OpenSSL's, for a certificate that does not hold.
bool is_certificate_failure(absl::string_view message) {
  const std::string lower = absl::AsciiStrToLower(message);
  return absl::StrContains(lower, "certificate verify failed") ||
         absl::StrContains(lower, "certificate_verify_failed") ||
         absl::StrContains(lower, "hostname verification check failed") ||
         absl::StrContains(lower, "is not in peer certificate");
}

}  // namespace

std::string Terminal::paint(const std::string& text, const char* code) const {
  return colour ? absl::StrCat("\033[", code, "m", text, "\033[0m") : text;
}

void print_lines(const Terminal& terminal, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) terminal.out << line << '\n';
  terminal.out.flush();
}

void print_errors(const Terminal& terminal, const std::vector<std::string>& errors) {
  for (const std::string& error : errors) terminal.err << "error: " << spec::redact(error) << '\n';
  terminal.err.flush();
}

ExitCode report_failure(const Terminal& terminal, const absl::Status& status,
                        const std::string& address) {
  // With a reason it is the service that answers.
  if (absl::IsUnavailable(status) && is_certificate_failure(status.message())) {
    print_errors(terminal, {absl::StrCat("the service at ", address,
                                         " shows a certificate that is not of the authority in "
                                         "--ca, or not for this name")});
    return kUnreachable;
  }
  if (absl::IsUnavailable(status) && error_reason(status).empty()) {
    print_errors(terminal, {absl::StrCat("cannot reach the service at ", address,
                                         "; `tessera up` starts one (", status.message(), ")")});
    return kUnreachable;
  }
  print_errors(terminal, describe_error(status));
  return is_users_mistake(status) ? kUsage : kUnreachable;
}

}  // namespace tessera::cli
