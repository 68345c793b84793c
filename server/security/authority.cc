#include "server/security/authority.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/security/private_file.h"
#include "server/security/x509.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kAuthorityLifetime = absl::Hours(24 * 3650);
constexpr absl::Duration kServerLifetime = absl::Hours(24 * 365);
// Clocks of other machines may be behind.
constexpr absl::Duration kClockSkew = absl::Minutes(5);

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::string agent_uri(const std::string& node, const std::string& credential) {
  return absl::StrCat("tessera://agent/", node, credential.empty() ? "" : "/", credential);
}

absl::StatusOr<Authority> Authority::open(const std::filesystem::path& directory,
                                          const Clock& clock) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    const int why = errno;
    return absl::ErrnoToStatus(why, directory.string());
  }
  Authority authority(directory, clock);
  // The certificate is written last: where it is, the key is.
  const absl::Status status =
      std::filesystem::exists(authority.certificate_path()) ? authority.load() : authority.create();
  if (!status.ok()) return status;
  return authority;
}

absl::Status Authority::create() {
  const absl::Time now = clock_->wall();
  key_ = make_key();
  auto certificate = make_authority(key_, absl::StrCat("Tessera authority ", random_hex(4)),
                                    {now - kClockSkew, now + kAuthorityLifetime});
  if (!certificate.ok()) return certificate.status();
  certificate_ = *std::move(certificate);
  if (absl::Status status = write_private(directory_ / "ca-key.pem", key_); !status.ok()) {
    return status;
  }
  return write_private(certificate_path(), certificate_);
}

absl::Status Authority::load() {
  auto certificate = read_small(certificate_path());
  if (!certificate.ok()) return certificate.status();
  auto key = read_private(directory_ / "ca-key.pem");
  if (!key.ok()) return key.status();
  const auto facts = read_certificate(*certificate);
  if (!facts.ok() || !match(*certificate, *key)) {
    return absl::FailedPreconditionError(absl::StrCat(
        directory_.string(), ": ca.pem and ca-key.pem are no certificate and its key"));
  }
  if (facts->validity.end <= clock_->wall()) {
    return absl::FailedPreconditionError(
        absl::StrCat(certificate_path().string(), " has ended; remove ", directory_.string(),
                     " for a new authority, and enrol the agents again"));
  }
  certificate_ = *std::move(certificate);
  key_ = *std::move(key);
  return absl::OkStatus();
}

absl::Status Authority::ensure_server_certificate(const std::vector<std::string>& hosts) const {
  const absl::Time now = clock_->wall();
  const auto present = read_small(server_certificate_path());
  const auto present_key = read_private(server_key_path());
  if (present.ok() && present_key.ok() && match(*present, *present_key)) {
    const auto facts = read_certificate(*present);
    if (facts.ok() && now < facts->validity.end - kServerLifetime / 3 &&
        sorted(facts->hosts) == sorted(hosts)) {
      return absl::OkStatus();
    }
  }
  const std::string key = make_key();
  const auto public_key = public_key_of(key);
  if (!public_key.ok()) return public_key.status();
  const Leaf leaf{.common_name = "tesserad",
                  .hosts = sorted(hosts),
                  .uri = "",
                  .is_server = true,
                  .validity = {now - kClockSkew, now + kServerLifetime}};
  const auto certificate = issue(certificate_, key_, *public_key, leaf);
  if (!certificate.ok()) return certificate.status();
  if (absl::Status status = write_private(server_key_path(), key); !status.ok()) return status;
  return write_private(server_certificate_path(), *certificate);
}

absl::StatusOr<std::string> Authority::certify_agent(const std::string& public_key,
                                                     const std::string& node,
                                                     const std::string& credential,
                                                     absl::Time end) const {
  const absl::Time now = clock_->wall();
  return issue(certificate_, key_, public_key,
               {.common_name = "tessera-agent",
                .hosts = {},
                .uri = agent_uri(node, credential),
                .is_server = false,
                .validity = {now - std::min(kClockSkew, (end - now) / 4), end}});
}

}  // namespace tessera::server
