// Tokens and agents' certificates: what was given out, to whom, until when.
//
// Of a token only SHA-256 of its secret is kept: 256 random bits need no slower hash. All are in
// the database before anybody hears of them, and in memory, so that a call is checked without a
// read.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/jobs/clock.h"
#include "server/jobs/database.h"
#include "tessera/v1/access.pb.h"

namespace tessera::server {

// Thread safe. What fails for the database's sake is to_status() of that.
class Credentials {
 public:
  // A token as clients write it is tsr_ID_SECRET, both in hexadecimal.
  static constexpr std::string_view kTokenPrefix = "tsr_";

  // Opens or makes their table. Errors are those of Storage::open; throws DatabaseError.
  static absl::StatusOr<std::unique_ptr<Credentials>> open(Storage& storage, const Clock& clock);

  // INVALID_ARGUMENT: a field breaks a rule. RESOURCE_EXHAUSTED: there are too many.
  absl::StatusOr<v1::CreateTokenResponse> create(const v1::CreateTokenRequest& request,
                                                 const std::string& creator);

  // The token's credential. UNAUTHENTICATED: it is none, or has ended.
  absl::StatusOr<v1::Credential> verify_token(std::string_view token) const;
  // UNAUTHENTICATED: there is no such certificate, or it was revoked or has ended.
  absl::StatusOr<v1::Credential> verify_certificate(const std::string& id) const;
  // OK: the token or certificate of this id still holds. UNAUTHENTICATED.
  absl::Status check(const std::string& id) const;

  // A certificate's credential for `node`, for the enrolment token. The same token, node and key
  // give the same one again. Errors as in access.proto.
  absl::StatusOr<v1::Credential> enrol(const std::string& token_id, const std::string& node,
                                       std::string_view public_key, absl::Duration lifetime);
  // Moves the end of a certificate.
  absl::StatusOr<v1::Credential> renew(const std::string& id, absl::Duration lifetime);

  // NOT_FOUND.
  absl::StatusOr<v1::Credential> revoke(const std::string& id);
  // Deletes agents' tokens that have the description, and the certificates that they gave: those of
  // machines that come and go would fill the list. Whoever has one is told that it is unknown.
  void forget(const std::string& description);
  // Newest first.
  std::vector<v1::Credential> list() const;

 private:
  struct Entry {
    v1::Credential credential;
    // Of a token: of its secret. Of a certificate: of the public key it was first given for.
    std::string sha256;
    // Of a used enrolment token: the certificate that it gave.
    std::string successor;
  };

  Credentials(std::unique_ptr<Database> database, const Clock& clock)
      : clock_(clock), database_(std::move(database)) {}
  void load();
  // Writes all of the entries in one transaction, then takes them into memory. Requires mutex_
  // held.
  void put(const std::vector<Entry>& entries);
  // Requires mutex_ held. RESOURCE_EXHAUSTED.
  absl::Status make_room();
  absl::Status check_live(const Entry& entry) const;
  // Requires mutex_ held, as do the next two.
  absl::StatusOr<v1::Credential> enrol_locked(const std::string& token_id, const std::string& node,
                                              std::string_view key_sha256, absl::Duration lifetime);
  // What the used token gave, to who asks again.
  absl::StatusOr<v1::Credential> enrolled_before(const Entry& token, const std::string& node,
                                                 std::string_view key_sha256) const;
  // The node's live certificates, revoked; ALREADY_EXISTS: the token does not replace them.
  absl::StatusOr<std::vector<Entry>> replaced(const v1::Credential& token,
                                              const std::string& node) const;
  Entry new_certificate(const v1::Credential& token, const std::string& node,
                        std::string_view key_sha256, absl::Duration lifetime) const;

  const Clock& clock_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  const std::unique_ptr<Database> database_;
  std::map<std::string, Entry, std::less<>> entries_;  // by id
};

}  // namespace tessera::server
