// How the agent joins a coordinator that it reaches over TLS, and stays a member: it enrols once
// with a token, and asks for the next certificate before the one it has ends.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "tessera/v1/access.grpc.pb.h"
#include "worker/agent/certificate.h"

namespace tessera::agent {

struct MembershipOptions {
  // HOST:PORT; of several one leads.
  std::vector<std::string> coordinators;
  std::string node;
  // Authority of the coordinator's certificate, in PEM.
  std::filesystem::path ca;
  // Of an enrolment token; read only where there is no certificate. Empty: none.
  std::filesystem::path enrol_token;
  // Where the certificate is kept.
  std::filesystem::path directory;
  // A certificate and key of the user's own, in place of one to enrol for. Both or none.
  std::filesystem::path certificate;
  std::filesystem::path key;
};

// Whether a call failed because the coordinator's certificate does not hold.
bool is_certificate_failure(const std::string& message);

class Membership {
 public:
  // Has a certificate in the end, or says in one sentence why not. Tries for as long as there is no
  // coordinator; CANCELLED once `interrupt`, a descriptor, can be read.
  static absl::StatusOr<std::unique_ptr<Membership>> join(MembershipOptions options, int interrupt);

  // With the newest certificate. INTERNAL and others: the files can no longer be read.
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials() const;

  const MembershipOptions& options() const { return options_; }

 private:
  explicit Membership(MembershipOptions options);
  absl::Status enrol(int interrupt);
  absl::Status check_node(const Certificate& certificate) const;
  // The certificate for a request, by the method that fits.
  absl::StatusOr<std::string> ask_to_enrol(const std::string& token) const;
  // Makes the call at one coordinator after the other, until one answers.
  absl::Status call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    const std::function<grpc::Status(v1::Access::Stub&)>& method) const;
  absl::Status renew(const std::stop_token& stop) const;
  void keep_renewing(std::stop_token stop);

  const MembershipOptions options_;
  const CertificateFiles files_;
  std::string authority_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  // Last: it uses the others.
  std::jthread renewals_;
};

}  // namespace tessera::agent
