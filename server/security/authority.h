// The certificate authority of one coordinator, in DIRECTORY of its state:
//
//   ca.pem          for clients and agents to trust (their --ca)
//   ca-key.pem      0600; never leaves the machine
//   server.pem, server-key.pem   what the coordinator shows
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/clock.h"

namespace tessera::server {

// The URI in a certificate by which an agent is known: tessera://agent/NODE/CREDENTIAL. One of
// another authority (--client-ca) ends after NODE.
std::string agent_uri(const std::string& node, const std::string& credential);

// Thread safe: nothing changes after open().
class Authority {
 public:
  // Makes key and certificate where they are missing. FAILED_PRECONDITION: others may read the key,
  // it is not that of the certificate, or the certificate has ended.
  static absl::StatusOr<Authority> open(const std::filesystem::path& directory, const Clock& clock);

  // Makes the coordinator's certificate anew where it ends within a third of its life, or is not
  // for exactly these hosts.
  absl::Status ensure_server_certificate(const std::vector<std::string>& hosts) const;

  // A client's certificate for the public key.
  absl::StatusOr<std::string> certify_agent(const std::string& public_key, const std::string& node,
                                            const std::string& credential, absl::Time end) const;

  const std::string& certificate() const { return certificate_; }
  std::filesystem::path certificate_path() const { return directory_ / "ca.pem"; }
  std::filesystem::path server_certificate_path() const { return directory_ / "server.pem"; }
  std::filesystem::path server_key_path() const { return directory_ / "server-key.pem"; }

 private:
  Authority(std::filesystem::path directory, const Clock& clock)
      : directory_(std::move(directory)), clock_(&clock) {}
  absl::Status create();
  absl::Status load();

  std::filesystem::path directory_;
  const Clock* clock_;
  std::string certificate_;
  std::string key_;
};

}  // namespace tessera::server
