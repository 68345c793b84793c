#include "server/launchers/token_enrolment.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/security/private_file.h"

namespace tessera::server {
namespace {

// Longer than an allocation waits for its machines. It is for one node, and ends with the
// allocation.
constexpr absl::Duration kTokenLifetime = absl::Hours(24 * 30);

class TokenEnrolment final : public Enrolment {
 public:
  TokenEnrolment(EnrolmentOptions options, Security& security, bool has_tls)
      : options_(std::move(options)), security_(security), has_tls_(has_tls) {}

  std::string coordinator() const override { return options_.coordinator; }

  absl::StatusOr<std::string> authority() const override {
    if (!has_tls_) return "";
    return read_small(options_.authority);
  }

  absl::StatusOr<std::vector<std::string>> tokens(const std::string& allocation,
                                                  int num_nodes) override {
    // Those of an earlier try are of no use to anybody, or in use: one that is used up lets nobody
    // in.
    std::vector<std::string> tokens;
    for (int index = 0; index < num_nodes; ++index) {
      v1::CreateTokenRequest request;
      request.set_role(v1::Credential::AGENT);
      request.set_node(node_of_allocation(allocation, index));
      request.set_description(allocation);
      request.mutable_lifetime()->set_seconds(absl::ToInt64Seconds(kTokenLifetime));
      auto created = security_.credentials().create(request, "launcher");
      if (!created.ok()) return created.status();
      tokens.push_back(created->secret());
    }
    return tokens;
  }

  void revoke(const std::string& allocation) override {
    if (has_tls_) security_.credentials().forget(allocation);
  }

 private:
  const EnrolmentOptions options_;
  Security& security_;
  const bool has_tls_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Enrolment>> make_enrolment(EnrolmentOptions options,
                                                          Security& security) {
  const std::string& coordinator = options.coordinator;
  if (coordinator.empty()) {
    return absl::InvalidArgumentError(
        "--launcher-coordinator must be given with --slurm and --kubernetes: HOST:PORT at which "
        "the machines of the cluster reach this tesserad");
  }
  const bool has_tls =
      !absl::StartsWith(coordinator, "unix:") && !security.tls_options().insecure_loopback;
  if (has_tls && !security.enrolment_authority()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--launcher-coordinator is \"", coordinator,
        "\", which agents are let in to by certificates of this coordinator: it needs a --listen "
        "HOST:PORT, and no --client-ca"));
  }
  return std::make_shared<TokenEnrolment>(std::move(options), security, has_tls);
}

}  // namespace tessera::server
