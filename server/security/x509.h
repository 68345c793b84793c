// Keys and certificates in PEM: elliptic curve P-256, SHA-256. The only user of OpenSSL's objects.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::server {

// From the kernel's generator by way of OpenSSL's.
std::string random_hex(size_t num_bytes);
// Of the 32 bytes.
std::string sha256(std::string_view bytes);
bool equal_in_constant_time(std::string_view a, std::string_view b);

// A new private key.
std::string make_key();

struct Validity {
  absl::Time begin;
  absl::Time end;
};

// What a certificate is issued for.
struct Leaf {
  std::string common_name;
  // Subject alternative names. Those of `hosts` that are IP addresses are written as such.
  std::vector<std::string> hosts;
  std::string uri;
  // To be shown by servers; else by clients.
  bool is_server = false;
  Validity validity;
};

// A certificate of an authority that signs for itself, and nothing but leaves.
absl::StatusOr<std::string> make_authority(const std::string& key, const std::string& common_name,
                                           Validity validity);

// The private key's public half, in PEM.
absl::StatusOr<std::string> public_key_of(const std::string& key);

// The public key of a PKCS #10 request whose signature is right. INVALID_ARGUMENT: it is none, or
// its key is of another kind.
absl::StatusOr<std::string> public_key_of_request(const std::string& request);

// A certificate for the public key.
absl::StatusOr<std::string> issue(const std::string& authority, const std::string& authority_key,
                                  const std::string& public_key, const Leaf& leaf);

struct CertificateFacts {
  Validity validity;
  // DNS names and IP addresses.
  std::vector<std::string> hosts;
};

// Of the first certificate in the text.
absl::StatusOr<CertificateFacts> read_certificate(const std::string& certificate);

// Whether the key is that of the certificate.
bool match(const std::string& certificate, const std::string& key);

}  // namespace tessera::server
