// launcher: kubernetes. Allocations are indexed Jobs (batch/v1) of a pod a node; a Secret of the
// same name has the agents' tokens.
//
// A Job has the allocation's name, so that one that is made again is refused with 409: it is there
// already.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/launchers/kubernetes_manifest.h"
#include "server/launchers/launcher.h"

namespace tessera::server {

struct KubernetesOptions {
  // HOST:PORT of the API server.
  std::string api;
  std::string name_space = "tessera";
  std::string image;
  // Of a service account that may create, get, list and delete Jobs and Secrets of the namespace,
  // and list its Pods. Read at each call: it is renewed in place. Empty: no token.
  std::filesystem::path token;
  // Authority of the API server's certificate. Empty: those that the system trusts.
  std::filesystem::path ca;
  // JSON that is merged into the pod template. Empty: none.
  std::filesystem::path pod_template;
  int devices_per_node = 8;
  // Label of this coordinator's Jobs; their names begin with "tessera-OWNER-".
  std::string owner;
};

class KubernetesLauncher final : public Launcher {
 public:
  // INVALID_ARGUMENT names the flag of tesserad that is wrong.
  static absl::StatusOr<std::unique_ptr<Launcher>> make(KubernetesOptions options,
                                                        std::shared_ptr<Enrolment> enrolment);

  std::string kind() const override { return "kubernetes"; }
  int max_devices_per_node() const override { return options_.devices_per_node; }
  absl::StatusOr<std::string> submit(const LaunchRequest& request) override;
  absl::StatusOr<std::vector<ClusterJob>> list() override;
  absl::StatusOr<bool> is_gone(const ClusterJob& job) override;
  absl::Status remove(const ClusterJob& job) override;

 private:
  KubernetesLauncher(KubernetesOptions options, std::shared_ptr<Enrolment> enrolment,
                     nlohmann::json pod_template)
      : options_(std::move(options)),
        enrolment_(std::move(enrolment)),
        pod_template_(std::move(pod_template)) {}

  // The answer's object. NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION: the API refuses what it
  // was given; all else is UNAVAILABLE.
  absl::StatusOr<nlohmann::json> call(const std::string& method, const std::string& path,
                                      const nlohmann::json& body = nullptr) const;
  // All pages of a list.
  absl::StatusOr<nlohmann::json> items(const std::string& path, const std::string& selector) const;
  absl::StatusOr<nlohmann::json> make_job(const LaunchRequest& request) const;
  absl::Status make_secret(const LaunchRequest& request, const std::string& uid) const;
  std::string path_of(const std::string& resource, const std::string& name = "") const;

  const KubernetesOptions options_;
  const std::shared_ptr<Enrolment> enrolment_;
  const nlohmann::json pod_template_;
};

}  // namespace tessera::server
