#include "server/security/credentials.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/security/token_rules.h"
#include "server/security/x509.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxCredentials = 10'000;
constexpr absl::Duration kForgetAfter = absl::Hours(24 * 30);
constexpr size_t kIdBytes = 6;
constexpr size_t kSecretBytes = 32;

constexpr const char* kSchema = R"sql(
CREATE TABLE credentials (
  id TEXT PRIMARY KEY,
  sha256 BLOB NOT NULL,
  successor TEXT NOT NULL,
  credential BLOB NOT NULL
) WITHOUT ROWID;
)sql";

// Of "access.db".
const Schema& schema() {
  static const Schema schema{"access", {kSchema}};
  return schema;
}

google::protobuf::Timestamp timestamp(absl::Time time) {
  google::protobuf::Timestamp message;
  message.set_seconds(absl::ToUnixSeconds(time));
  return message;
}

absl::Time time_of(const google::protobuf::Timestamp& message) {
  return absl::FromUnixSeconds(message.seconds());
}

absl::Status unauthenticated(std::string_view reason, std::string_view message) {
  return error(absl::StatusCode::kUnauthenticated, reason, message);
}

absl::Status unknown_token() {
  return unauthenticated("TOKEN_INVALID", "the token is none of this coordinator");
}

absl::Status unknown_certificate() {
  return unauthenticated("CERTIFICATE_UNKNOWN", "the certificate is none that was given out");
}

// ID and SECRET of tsr_ID_SECRET. Both empty: it is no token.
std::pair<std::string_view, std::string_view> parse_token(std::string_view token) {
  constexpr size_t kId = 2 * kIdBytes;
  const size_t length = Credentials::kTokenPrefix.size() + kId + 1 + 2 * kSecretBytes;
  if (token.size() != length || !token.starts_with(Credentials::kTokenPrefix)) return {};
  token.remove_prefix(Credentials::kTokenPrefix.size());
  if (token[kId] != '_') return {};
  return {token.substr(0, kId), token.substr(kId + 1)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Credentials>> Credentials::open(Storage& storage,
                                                               const Clock& clock) {
  auto database = storage.open(schema());
  if (!database.ok()) return database.status();
  std::unique_ptr<Credentials> credentials(new Credentials(*std::move(database), clock));
  credentials->load();
  return credentials;
}

void Credentials::load() {
  database_->read("SELECT sha256, successor, credential FROM credentials", {}, [&](const Row& row) {
    Entry entry{parse<v1::Credential>(row, 2), std::string(row.bytes(0)),
                std::string(row.bytes(1))};
    const std::string id = entry.credential.id();
    entries_.emplace(id, std::move(entry));
    return true;
  });
}

void Credentials::put(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    const std::string bytes = entry.credential.SerializeAsString();
    database_->write(
        "INSERT INTO credentials (id, sha256, successor, credential) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET sha256 = excluded.sha256, successor = excluded.successor, "
        "credential = excluded.credential",
        {entry.credential.id(), Blob{entry.sha256}, entry.successor, Blob{bytes}});
  }
  database_->commit();
  for (const Entry& entry : entries) entries_[entry.credential.id()] = entry;
}

absl::Status Credentials::make_room() {
  if (entries_.size() < kMaxCredentials) return absl::OkStatus();
  const absl::Time before = clock_.wall() - kForgetAfter;
  std::vector<std::string> forgotten;
  for (const auto& [id, entry] : entries_) {
    const v1::Credential& credential = entry.credential;
    const absl::Time end = std::min(
        time_of(credential.expire_time()),
        credential.has_revoke_time() ? time_of(credential.revoke_time()) : absl::InfiniteFuture());
    if (end >= before) continue;
    database_->write("DELETE FROM credentials WHERE id = ?", {id});
    forgotten.push_back(id);
  }
  database_->commit();
  for (const std::string& id : forgotten) entries_.erase(id);
  if (entries_.size() < kMaxCredentials) return absl::OkStatus();
  return error(absl::StatusCode::kResourceExhausted, "TOO_MANY_CREDENTIALS",
               absl::StrCat("the coordinator keeps ", kMaxCredentials, " credentials at most"));
}

absl::StatusOr<v1::CreateTokenResponse> Credentials::create(const v1::CreateTokenRequest& request,
                                                            const std::string& creator) {
  if (absl::Status status = check_token_request(request); !status.ok()) return status;
  const absl::Time now = clock_.wall();
  v1::CreateTokenResponse response;
  v1::Credential& credential = *response.mutable_credential();
  credential.set_id(random_hex(kIdBytes));
  credential.set_kind(v1::Credential::TOKEN);
  credential.set_role(request.role());
  *credential.mutable_projects() = request.projects();
  credential.set_node(request.node());
  credential.set_description(request.description());
  *credential.mutable_create_time() = timestamp(now);
  *credential.mutable_expire_time() = timestamp(now + absl::Seconds(request.lifetime().seconds()));
  credential.set_creator(creator);
  const std::string secret = random_hex(kSecretBytes);
  response.set_secret(absl::StrCat(std::string(kTokenPrefix), credential.id(), "_", secret));
  try {
    const std::lock_guard lock(mutex_);
    if (absl::Status status = make_room(); !status.ok()) return status;
    put({Entry{credential, sha256(secret), ""}});
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
  return response;
}

absl::Status Credentials::check_live(const Entry& entry) const {
  const v1::Credential& credential = entry.credential;
  const bool is_token = credential.kind() == v1::Credential::TOKEN;
  const std::string what =
      absl::StrCat(is_token ? "the token " : "the certificate ", credential.id());
  if (credential.has_revoke_time()) {
    return unauthenticated(is_token ? "TOKEN_REVOKED" : "CERTIFICATE_REVOKED",
                           absl::StrCat(what, " was revoked"));
  }
  if (time_of(credential.expire_time()) <= clock_.wall()) {
    return unauthenticated(
        is_token ? "TOKEN_EXPIRED" : "CERTIFICATE_EXPIRED",
        absl::StrCat(what, " ended at ",
                     absl::FormatTime(absl::RFC3339_sec, time_of(credential.expire_time()),
                                      absl::UTCTimeZone())));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Credential> Credentials::verify_token(std::string_view token) const {
  const auto [id, secret] = parse_token(token);
  const std::string digest = sha256(secret);
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  // A certificate's id is no token's, and its hash is not that of a secret.
  if (id.empty() || found == entries_.end() ||
      found->second.credential.kind() != v1::Credential::TOKEN ||
      !equal_in_constant_time(found->second.sha256, digest)) {
    return unknown_token();
  }
  // Only who has the secret is told more.
  if (absl::Status status = check_live(found->second); !status.ok()) return status;
  return found->second.credential;
}

absl::StatusOr<v1::Credential> Credentials::verify_certificate(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.credential.kind() != v1::Credential::CERTIFICATE) {
    return unknown_certificate();
  }
  if (absl::Status status = check_live(found->second); !status.ok()) return status;
  return found->second.credential;
}

absl::Status Credentials::check(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? unknown_token() : check_live(found->second);
}

Credentials::Entry Credentials::new_certificate(const v1::Credential& token,
                                                const std::string& node,
                                                std::string_view key_sha256,
                                                absl::Duration lifetime) const {
  Entry entry{{}, std::string(key_sha256), ""};
  entry.credential.set_id(random_hex(kIdBytes));
  entry.credential.set_kind(v1::Credential::CERTIFICATE);
  entry.credential.set_role(v1::Credential::AGENT);
  entry.credential.set_node(node);
  entry.credential.set_description(token.description());
  entry.credential.set_creator(absl::StrCat("token ", token.id()));
  *entry.credential.mutable_create_time() = timestamp(clock_.wall());
  *entry.credential.mutable_expire_time() = timestamp(clock_.wall() + lifetime);
  return entry;
}

absl::StatusOr<v1::Credential> Credentials::enrolled_before(const Entry& token,
                                                            const std::string& node,
                                                            std::string_view key_sha256) const {
  const auto successor = entries_.find(token.successor);
  if (successor != entries_.end() && successor->second.sha256 == key_sha256 &&
      successor->second.credential.node() == node && check_live(successor->second).ok()) {
    return successor->second.credential;
  }
  return error(
      absl::StatusCode::kPermissionDenied, "TOKEN_USED",
      absl::StrCat("the token ", token.credential.id(), " has enrolled an agent, and enrols one"));
}

absl::StatusOr<std::vector<Credentials::Entry>> Credentials::replaced(
    const v1::Credential& token, const std::string& node) const {
  std::vector<Entry> replaced;
  for (const auto& [id, entry] : entries_) {
    if (entry.credential.kind() != v1::Credential::CERTIFICATE || entry.credential.node() != node ||
        !check_live(entry).ok()) {
      continue;
    }
    if (token.node().empty()) {
      return error(absl::StatusCode::kAlreadyExists, "NODE_ENROLLED",
                   absl::StrCat("node ", node, " has the certificate ", id,
                                "; revoke it, or make a token for this node (--node ", node, ")"));
    }
    *replaced.emplace_back(entry).credential.mutable_revoke_time() = timestamp(clock_.wall());
  }
  return replaced;
}

absl::StatusOr<v1::Credential> Credentials::enrol_locked(const std::string& token_id,
                                                         const std::string& node,
                                                         std::string_view key_sha256,
                                                         absl::Duration lifetime) {
  const auto found = entries_.find(token_id);
  if (found == entries_.end()) return unknown_token();
  Entry token = found->second;
  if (absl::Status status = check_live(token); !status.ok()) return status;
  const std::string& only_node = token.credential.node();
  if (!only_node.empty() && only_node != node) {
    return error(absl::StatusCode::kPermissionDenied, "OTHER_NODE",
                 absl::StrCat("the token ", token_id, " enrols node ", only_node, ", not ", node));
  }
  if (token.credential.has_use_time()) return enrolled_before(token, node, key_sha256);
  auto changed = replaced(token.credential, node);
  if (!changed.ok()) return changed.status();
  if (absl::Status status = make_room(); !status.ok()) return status;
  const Entry certificate = new_certificate(token.credential, node, key_sha256, lifetime);
  changed->push_back(certificate);
  *token.credential.mutable_use_time() = timestamp(clock_.wall());
  token.successor = certificate.credential.id();
  changed->push_back(std::move(token));
  put(*changed);
  return certificate.credential;
}

absl::StatusOr<v1::Credential> Credentials::enrol(const std::string& token_id,
                                                  const std::string& node,
                                                  std::string_view public_key,
                                                  absl::Duration lifetime) {
  if (absl::Status status = check_node_name("node", node); !status.ok()) return status;
  try {
    const std::lock_guard lock(mutex_);
    return enrol_locked(token_id, node, sha256(public_key), lifetime);
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

absl::StatusOr<v1::Credential> Credentials::renew(const std::string& id, absl::Duration lifetime) {
  try {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return unknown_certificate();
    if (absl::Status status = check_live(found->second); !status.ok()) return status;
    Entry entry = found->second;
    *entry.credential.mutable_expire_time() = timestamp(clock_.wall() + lifetime);
    put({entry});
    return entry.credential;
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

absl::StatusOr<v1::Credential> Credentials::revoke(const std::string& id) {
  try {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) {
      return error(absl::StatusCode::kNotFound, "NO_CREDENTIAL",
                   absl::StrCat("there is no token and no certificate \"", id, "\""));
    }
    Entry entry = found->second;
    if (!entry.credential.has_revoke_time()) {
      *entry.credential.mutable_revoke_time() = timestamp(clock_.wall());
      put({entry});
    }
    return entry.credential;
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

void Credentials::forget(const std::string& description) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : entries_) {
    if (entry.credential.role() == v1::Credential::AGENT &&
        entry.credential.description() == description) {
      ids.push_back(id);
    }
  }
  try {
    for (const std::string& id : ids) {
      database_->write("DELETE FROM credentials WHERE id = ?", {id});
    }
    database_->commit();
  } catch (const DatabaseError&) {
    return;  // they end by themselves
  }
  for (const std::string& id : ids) entries_.erase(id);
}

std::vector<v1::Credential> Credentials::list() const {
  std::vector<v1::Credential> list;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) list.push_back(entry.credential);
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return a.create_time().seconds() > b.create_time().seconds();
  });
  return list;
}

}  // namespace tessera::server
