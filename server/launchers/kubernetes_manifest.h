// What the Kubernetes launcher sends: a Job and a Secret, as JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "server/launchers/launcher.h"

namespace tessera::server {

struct ManifestOptions {
  std::string owner;
  std::string image;
  // As for the agents' --coordinator.
  std::string coordinator;
  bool with_tls = true;
  // Merged into the pod template: see merge_template().
  nlohmann::json pod_template = nlohmann::json::object();
};

// Label of what belongs to a coordinator; its value is the owner.
inline constexpr char kOwnerLabel[] = "tessera/coordinator";

// batch/v1 Job: indexed, a pod a node, none of which is replaced. All or nothing is up to the
// cluster's scheduler; what is started in part waits for the rest.
nlohmann::json job_manifest(const LaunchRequest& request, const ManifestOptions& options);

// v1 Secret of the agents' tokens, which goes with its Job.
nlohmann::json secret_manifest(const std::string& name, const std::string& job_uid,
                               const std::string& owner, const std::string& authority,
                               const std::vector<std::string>& tokens);

// Objects are merged by key, lists of objects that have names by name; other lists are appended to,
// and all else is replaced.
void merge_template(nlohmann::json& base, const nlohmann::json& patch);

// Where a Job stands, by itself and its pods (those of other Jobs are ignored).
ClusterJob cluster_job(const nlohmann::json& job, const nlohmann::json& pods);

// The string that a JSON pointer leads to; "" where there is none, whatever the value is.
std::string text_at(const nlohmann::json& value, const std::string& pointer);

// Whether the kubelets have told that all containers of the pods are terminated, or never started.
bool are_terminated(const nlohmann::json& pods);

}  // namespace tessera::server
