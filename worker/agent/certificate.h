// The agent's key and certificate, by which coordinators on other machines know it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <filesystem>
#include <string>

namespace tessera::agent {

// In PEM.
struct Certificate {
  std::string key;
  std::string chain;
  // That it names.
  std::string node;
  absl::Time begin;
  absl::Time end;
};

// A new private key: elliptic curve, P-256.
std::string make_key();

// A PKCS #10 request that names nothing but the key: the coordinator says who it is.
absl::StatusOr<std::string> make_certificate_request(const std::string& key);

// DIRECTORY/key.pem and DIRECTORY/certificate.pem, mode 0600.
class CertificateFiles {
 public:
  explicit CertificateFiles(std::filesystem::path directory)
      : key_(directory / "key.pem"),
        chain_(directory / "certificate.pem"),
        directory_(std::move(directory)) {}
  // Files of the user's own.
  CertificateFiles(std::filesystem::path key, std::filesystem::path chain)
      : key_(std::move(key)), chain_(std::move(chain)) {}

  // NOT_FOUND: there is no certificate. FAILED_PRECONDITION: the files are none, do not belong
  // together, or others may read the key.
  absl::StatusOr<Certificate> load() const;

  // The key of the certificate to come, made where there is none: it is the same one for as long as
  // the request is not answered, so that an answer that was lost can be asked for again.
  absl::StatusOr<std::string> key_for_request() const;
  absl::Status store(const std::string& chain) const;

  const std::filesystem::path& chain_path() const { return chain_; }

 private:
  std::filesystem::path key_;
  std::filesystem::path chain_;
  std::filesystem::path directory_;
};

}  // namespace tessera::agent
