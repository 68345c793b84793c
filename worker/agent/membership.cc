#include "worker/agent/membership.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/time/clock.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "worker/agent/file_util.h"

namespace tessera::agent {
namespace {

constexpr std::chrono::seconds kCallTimeout{20};
constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kFirstPauseMs = 200;
constexpr int kLastPauseMs = 5000;
// Between tries to renew: a part of the time that is left, within these.
constexpr absl::Duration kMinRenewalPause = absl::Seconds(1);
constexpr absl::Duration kMaxRenewalPause = absl::Minutes(10);

// A channel of its own: it is used once.
std::unique_ptr<v1::Access::Stub> make_stub(
    const std::string& coordinator, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::Access::NewStub(grpc::CreateCustomChannel(coordinator, credentials, arguments));
}

void set_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
}

absl::Status to_status(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

// Whether the descriptor could be read within the time.
bool is_interrupted(int interrupt, int pause_ms) {
  pollfd waiting{interrupt, POLLIN, 0};
  return ::poll(&waiting, 1, pause_ms) > 0;
}

// When the next certificate is due: in the last third of a life.
absl::Time renewal_time(const Certificate& certificate) {
  return certificate.end - (certificate.end - certificate.begin) / 3;
}

}  // namespace

bool is_certificate_failure(const std::string& message) {
  const std::string lower = absl::AsciiStrToLower(message);
  return absl::StrContains(lower, "certificate verify failed") ||
         absl::StrContains(lower, "certificate_verify_failed") ||
         absl::StrContains(lower, "hostname verification check failed") ||
         absl::StrContains(lower, "is not in peer certificate");
}

Membership::Membership(MembershipOptions options)
    : options_(std::move(options)),
      files_(options_.certificate.empty() ? CertificateFiles(options_.directory)
                                          : CertificateFiles(options_.key, options_.certificate)) {}

absl::StatusOr<std::unique_ptr<Membership>> Membership::join(MembershipOptions options,
                                                             int interrupt) {
  std::unique_ptr<Membership> member(new Membership(std::move(options)));
  auto authority = read_file(member->options_.ca, kMaxFileBytes);
  if (!authority.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--ca: ", authority.status().message()));
  }
  member->authority_ = *std::move(authority);
  const bool is_users = !member->options_.certificate.empty();
  const auto certificate = member->files_.load();
  if (certificate.ok() && (is_users || certificate->end > absl::Now())) {
    if (absl::Status status = member->check_node(*certificate); !status.ok()) return status;
  } else if (is_users || (!certificate.ok() && !absl::IsNotFound(certificate.status()))) {
    return certificate.status();
  } else if (absl::Status status = member->enrol(interrupt); !status.ok()) {
    return status;
  }
  if (!is_users) {
    member->renewals_ =
        std::jthread([it = member.get()](std::stop_token stop) { it->keep_renewing(stop); });
  }
  return member;
}

absl::Status Membership::check_node(const Certificate& certificate) const {
  if (certificate.node == options_.node) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the certificate ", files_.chain_path().string(), " is that of node \"", certificate.node,
      "\", and --node is \"", options_.node, "\"; remove it to enrol under the new name"));
}

absl::Status Membership::enrol(int interrupt) {
  if (options_.enrol_token.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this agent has no certificate in ", options_.directory.string(),
                     " that holds: give --enrol-token-file, with a token of `tessera token create "
                     "--role agent`"));
  }
  const auto text = read_file(options_.enrol_token, kMaxFileBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--enrol-token-file: ", text.status().message()));
  }
  const std::string token(absl::StripAsciiWhitespace(*text));
  const std::string where = absl::StrJoin(options_.coordinators, ",");
  bool outage_logged = false;
  for (int pause_ms = kFirstPauseMs;; pause_ms = std::min(2 * pause_ms, kLastPauseMs)) {
    const auto chain = ask_to_enrol(token);
    if (chain.ok()) {
      spdlog::info("enrolled at {} as {}", where, options_.node);
      return files_.store(*chain);
    }
    const std::string message(chain.status().message());
    if (is_certificate_failure(message)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator at ", where,
                       " shows a certificate that is not of the authority in --ca ",
                       options_.ca.string(), ", or not for this name"));
    }
    if (!absl::IsUnavailable(chain.status()) && !absl::IsDeadlineExceeded(chain.status()) &&
        !absl::IsResourceExhausted(chain.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator does not enrol this agent: ", message));
    }
    if (!std::exchange(outage_logged, true)) {
      spdlog::warn("cannot enrol at {}: {}; trying again until it answers", where, message);
    }
    if (is_interrupted(interrupt, pause_ms)) return absl::CancelledError("interrupted");
  }
}

absl::Status Membership::call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                              const std::function<grpc::Status(v1::Access::Stub&)>& method) const {
  absl::Status status;
  for (const std::string& coordinator : options_.coordinators) {
    status = to_status(method(*make_stub(coordinator, credentials)));
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) break;
  }
  return status;
}

absl::StatusOr<std::string> Membership::ask_to_enrol(const std::string& token) const {
  const auto key = files_.key_for_request();
  if (!key.ok()) return key.status();
  auto certificate_request = make_certificate_request(*key);
  if (!certificate_request.ok()) return certificate_request.status();
  v1::EnrolRequest request;
  request.set_node(options_.node);
  request.set_certificate_request(*std::move(certificate_request));
  v1::EnrolResponse response;
  // Without a certificate so far: the token alone says who asks.
  const auto credentials = grpc::SslCredentials(
      {.pem_root_certs = authority_, .pem_private_key = "", .pem_cert_chain = ""});
  const absl::Status status = call(credentials, [&](v1::Access::Stub& stub) {
    grpc::ClientContext context;
    set_deadline(context);
    context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    return stub.Enrol(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response.certificate();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Membership::credentials() const {
  auto certificate = files_.load();
  if (!certificate.ok()) return certificate.status();
  return grpc::SslCredentials({.pem_root_certs = authority_,
                               .pem_private_key = std::move(certificate->key),
                               .pem_cert_chain = std::move(certificate->chain)});
}

absl::Status Membership::renew(const std::stop_token& stop) const {
  const auto certificate = files_.load();
  if (!certificate.ok()) return certificate.status();
  auto certificate_request = make_certificate_request(certificate->key);
  if (!certificate_request.ok()) return certificate_request.status();
  const auto with_certificate = credentials();
  if (!with_certificate.ok()) return with_certificate.status();
  v1::RenewCertificateRequest request;
  request.set_certificate_request(*std::move(certificate_request));
  v1::RenewCertificateResponse response;
  const absl::Status status = call(*with_certificate, [&](v1::Access::Stub& stub) {
    grpc::ClientContext context;
    set_deadline(context);
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    return stub.RenewCertificate(&context, request, &response);
  });
  if (!status.ok()) return status;
  return files_.store(response.certificate());
}

void Membership::keep_renewing(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const auto certificate = files_.load();
    const absl::Time now = absl::Now();
    absl::Duration pause = kMaxRenewalPause;
    if (certificate.ok() && renewal_time(*certificate) > now) {
      pause = std::min(pause, renewal_time(*certificate) - now);
    } else if (certificate.ok()) {
      const absl::Status status = renew(stop);
      if (status.ok()) {
        spdlog::info("the agent's certificate was renewed");
        continue;
      }
      if (stop.stop_requested()) return;
      spdlog::warn("the agent's certificate, which ends at {}, was not renewed: {}",
                   absl::FormatTime(absl::RFC3339_sec, certificate->end, absl::UTCTimeZone()),
                   std::string(status.message()));
      pause = std::clamp((certificate->end - now) / 8, kMinRenewalPause, kMaxRenewalPause);
    }
    // The clock may be set: no pause is longer than the longest.
    wake_.wait_for(lock, stop, absl::ToChronoNanoseconds(std::max(pause, kMinRenewalPause)),
                   [] { return false; });
  }
}

}  // namespace tessera::agent
