#include "server/security/x509.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::server {
namespace {

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Request = std::unique_ptr<X509_REQ, Free<X509_REQ_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

constexpr int kSerialBytes = 16;

absl::Status broken(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", std::string(what)));
}

absl::Status failed(std::string_view what) {
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", std::string(what)));
}

Bio source(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without a callback OpenSSL would ask at the terminal for the password of a locked key.
int no_password(char*, int, int, void*) { return -1; }

Key read_key(const std::string& text) {
  return Key(PEM_read_bio_PrivateKey(source(text).get(), nullptr, no_password, nullptr));
}

Certificate read_x509(const std::string& text) {
  return Certificate(PEM_read_bio_X509(source(text).get(), nullptr, no_password, nullptr));
}

template <typename Write>
std::string written(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (write(bio.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

std::string to_pem(const Certificate& certificate) {
  return written([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
}

std::string public_pem(EVP_PKEY* key) {
  return written([&](BIO* bio) { return PEM_write_bio_PUBKEY(bio, key); });
}

bool is_ip(const std::string& host) {
  unsigned char address[16];
  return ::inet_pton(AF_INET, host.c_str(), address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address) == 1;
}

bool add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// What is common to all: version, a random serial number, validity, subject and key.
Certificate begin_certificate(const std::string& common_name, Validity validity, EVP_PKEY* key) {
  Certificate certificate(X509_new());
  unsigned char serial[kSerialBytes];
  RAND_bytes(serial, sizeof(serial));
  serial[0] = (serial[0] & 0x7f) | 0x40;  // positive, and of one length
  const std::unique_ptr<BIGNUM, Free<BN_free>> number(BN_bin2bn(serial, sizeof(serial), nullptr));
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get()));
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(validity.begin));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(validity.end));
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.data()),
                             static_cast<int>(common_name.size()), -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

std::string alternative_names(const Leaf& leaf) {
  std::vector<std::string> names;
  for (const std::string& host : leaf.hosts) {
    names.push_back(absl::StrCat(is_ip(host) ? "IP:" : "DNS:", host));
  }
  if (!leaf.uri.empty()) names.push_back("URI:" + leaf.uri);
  return absl::StrJoin(names, ",");
}

absl::Time time_of(const ASN1_TIME* time) {
  tm parts{};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FromTM(parts, absl::UTCTimeZone());
}

bool is_p256(EVP_PKEY* key) {
  char group[32] = "";
  return key != nullptr && EVP_PKEY_get_base_id(key) == EVP_PKEY_EC &&
         EVP_PKEY_get_group_name(key, group, sizeof(group), nullptr) == 1 &&
         std::string_view(group) == "prime256v1";
}

}  // namespace

std::string random_hex(size_t num_bytes) {
  std::string bytes(num_bytes, '\0');
  // Without randomness there is nothing to be done safely.
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(num_bytes)) != 1)
    std::abort();
  return absl::BytesToHexString(bytes);
}

std::string sha256(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string make_key() {
  const Key key(EVP_EC_gen("P-256"));
  return written([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

absl::StatusOr<std::string> make_authority(const std::string& key_pem,
                                           const std::string& common_name, Validity validity) {
  const Key key = read_key(key_pem);
  if (key == nullptr) return broken("the authority's key");
  const Certificate certificate = begin_certificate(common_name, validity, key.get());
  X509* it = certificate.get();
  X509_set_issuer_name(it, X509_get_subject_name(it));
  if (!add_extension(it, it, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(it, it, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !add_extension(it, it, NID_subject_key_identifier, "hash") ||
      X509_sign(it, key.get(), EVP_sha256()) == 0) {
    return failed("make the authority's certificate");
  }
  return to_pem(certificate);
}

absl::StatusOr<std::string> public_key_of(const std::string& key_pem) {
  const Key key = read_key(key_pem);
  if (key == nullptr) return broken("a private key");
  return public_pem(key.get());
}

absl::StatusOr<std::string> public_key_of_request(const std::string& request_pem) {
  const Request request(
      PEM_read_bio_X509_REQ(source(request_pem).get(), nullptr, no_password, nullptr));
  if (request == nullptr) return broken("a PKCS #10 request in PEM");
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (!is_p256(key)) {
    return absl::InvalidArgumentError("the key must be of the elliptic curve P-256");
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    return absl::InvalidArgumentError("the request is not signed with its key");
  }
  return public_pem(key);
}

absl::StatusOr<std::string> issue(const std::string& authority_pem,
                                  const std::string& authority_key_pem,
                                  const std::string& public_key, const Leaf& leaf) {
  const Certificate authority = read_x509(authority_pem);
  if (authority == nullptr) return broken("the authority's certificate");
  const Key authority_key = read_key(authority_key_pem);
  if (authority_key == nullptr) return broken("the authority's key");
  const Key key(PEM_read_bio_PUBKEY(source(public_key).get(), nullptr, no_password, nullptr));
  if (key == nullptr) return broken("a public key");
  const Certificate certificate = begin_certificate(leaf.common_name, leaf.validity, key.get());
  X509* it = certificate.get();
  X509_set_issuer_name(it, X509_get_subject_name(authority.get()));
  const char* usage = leaf.is_server ? "serverAuth" : "clientAuth";
  if (!add_extension(it, authority.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(it, authority.get(), NID_key_usage, "critical,digitalSignature") ||
      !add_extension(it, authority.get(), NID_ext_key_usage, usage) ||
      !add_extension(it, authority.get(), NID_subject_alt_name, alternative_names(leaf)) ||
      !add_extension(it, authority.get(), NID_authority_key_identifier, "keyid") ||
      X509_sign(it, authority_key.get(), EVP_sha256()) == 0) {
    return failed(absl::StrCat("issue a certificate for ", alternative_names(leaf)));
  }
  return to_pem(certificate);
}

absl::StatusOr<CertificateFacts> read_certificate(const std::string& pem) {
  const Certificate certificate = read_x509(pem);
  if (certificate == nullptr) return broken("a certificate in PEM");
  CertificateFacts facts{{time_of(X509_get0_notBefore(certificate.get())),
                          time_of(X509_get0_notAfter(certificate.get()))},
                         {}};
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      facts.hosts.emplace_back(
          reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
          static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      char text[INET6_ADDRSTRLEN] = "";
      const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
      ::inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof(text));
      facts.hosts.emplace_back(text);
    }
  }
  return facts;
}

bool match(const std::string& certificate_pem, const std::string& key_pem) {
  const Certificate certificate = read_x509(certificate_pem);
  const Key key = read_key(key_pem);
  return certificate != nullptr && key != nullptr &&
         X509_check_private_key(certificate.get(), key.get()) == 1;
}

}  // namespace tessera::server
