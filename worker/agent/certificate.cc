#include "worker/agent/certificate.h"

#include <absl/strings/str_cat.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <memory>
#include <string_view>

#include "worker/agent/file_util.h"

namespace tessera::agent {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr std::string_view kAgentUri = "tessera://agent/";

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Request = std::unique_ptr<X509_REQ, Free<X509_REQ_free>>;
using X509Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

Bio source(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without a callback OpenSSL would ask at the terminal for the password of a locked key.
int no_password(char*, int, int, void*) { return -1; }

Key read_key(const std::string& text) {
  return Key(PEM_read_bio_PrivateKey(source(text).get(), nullptr, no_password, nullptr));
}

template <typename Write>
std::string written(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (write(bio.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

absl::Time time_of(const ASN1_TIME* time) {
  tm parts{};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// NODE of tessera://agent/NODE/...; empty: the certificate names no agent.
std::string node_of(const X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_STRING* uri = name->d.uniformResourceIdentifier;
    std::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                          static_cast<size_t>(ASN1_STRING_length(uri)));
    if (!text.starts_with(kAgentUri)) continue;
    text.remove_prefix(kAgentUri.size());
    return std::string(text.substr(0, text.find('/')));
  }
  return "";
}

absl::Status check_mode(const std::filesystem::path& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return errno_status(absl::StrCat("read ", path.string()));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path.string(), " may be read or written by others than its owner; chmod 600 it"));
}

}  // namespace

std::string make_key() {
  const Key key(EVP_EC_gen("P-256"));
  return written([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

absl::StatusOr<std::string> make_certificate_request(const std::string& key_pem) {
  const Key key = read_key(key_pem);
  const Request request(X509_REQ_new());
  if (key == nullptr || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return absl::FailedPreconditionError("the agent's key is no private key in PEM");
  }
  return written([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
}

absl::StatusOr<Certificate> CertificateFiles::load() const {
  if (!std::filesystem::exists(chain_)) {
    return absl::NotFoundError(absl::StrCat("there is no certificate ", chain_.string()));
  }
  Certificate certificate;
  auto chain = read_file(chain_, kMaxFileBytes);
  if (!chain.ok()) return chain.status();
  if (absl::Status status = check_mode(key_); !status.ok()) return status;
  auto key_pem = read_file(key_, kMaxFileBytes);
  if (!key_pem.ok()) return key_pem.status();
  certificate.chain = *std::move(chain);
  certificate.key = *std::move(key_pem);
  const X509Certificate x509(
      PEM_read_bio_X509(source(certificate.chain).get(), nullptr, no_password, nullptr));
  const Key key = read_key(certificate.key);
  if (x509 == nullptr || key == nullptr || X509_check_private_key(x509.get(), key.get()) != 1) {
    return absl::FailedPreconditionError(absl::StrCat(chain_.string(), " and ", key_.string(),
                                                      " are no certificate and its key, in PEM"));
  }
  certificate.node = node_of(x509.get());
  certificate.begin = time_of(X509_get0_notBefore(x509.get()));
  certificate.end = time_of(X509_get0_notAfter(x509.get()));
  return certificate;
}

absl::StatusOr<std::string> CertificateFiles::key_for_request() const {
  if (absl::Status status = make_directories(directory_); !status.ok()) return status;
  if (std::filesystem::exists(key_)) {
    if (absl::Status status = check_mode(key_); !status.ok()) return status;
    return read_file(key_, kMaxFileBytes);
  }
  std::string key = make_key();
  if (absl::Status status = write_atomically(key_, key); !status.ok()) return status;
  return key;
}

absl::Status CertificateFiles::store(const std::string& chain) const {
  return write_atomically(chain_, chain);
}

}  // namespace tessera::agent
