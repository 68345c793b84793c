#include "server/launchers/kubernetes_manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

using Json = nlohmann::json;

constexpr char kContainer[] = "tessera-agent";
constexpr char kCredentials[] = "/etc/tessera";
// Agents stop their ranks at a checkpoint in it.
constexpr int kGraceSeconds = 60;
constexpr int kStopSeconds = 40;
// The coordinator deletes Jobs; those of one that is gone go by themselves.
constexpr int kKeepSeconds = 3600;
constexpr size_t kMaxReason = 300;
// Of the images in deploy/container.
constexpr int kUser = 10001;

Json from_field(const char* name, const char* path) {
  return {{"name", name}, {"valueFrom", {{"fieldRef", {{"fieldPath", path}}}}}};
}

Json labels(const std::string& owner) {
  return {{"app.kubernetes.io/name", "tessera"},
          {"app.kubernetes.io/component", "agent"},
          {kOwnerLabel, owner}};
}

Json container(const LaunchRequest& request, const ManifestOptions& options) {
  const bool is_cuda = request.device == "cuda";
  Json args{absl::StrCat("--coordinator=", options.coordinator),
            absl::StrCat("--allocation=", request.name),
            "--allocation-index=$(INDEX)",
            "--allocation-id=$(ALLOCATION_ID)",
            "--address=$(POD_IP)",
            "--state-dir=/var/lib/tessera-agent",
            absl::StrCat("--stop-grace=", kStopSeconds),
            absl::StrCat("--cpu-slots=", is_cuda ? 0 : request.devices_per_node),
            absl::StrCat("--cuda-devices=", is_cuda ? "all" : "none")};
  Json mounts{{{"name", "state"}, {"mountPath", "/var/lib/tessera-agent"}},
              {{"name", "tmp"}, {"mountPath", "/tmp"}},
              {{"name", "shared-memory"}, {"mountPath", "/dev/shm"}}};
  if (options.with_tls) {
    args.push_back(absl::StrCat("--ca=", kCredentials, "/ca.pem"));
    args.push_back(absl::StrCat("--enrol-token-file=", kCredentials, "/token"));
    mounts.push_back({{"name", "credentials"}, {"mountPath", kCredentials}, {"readOnly", true}});
  } else {
    args.push_back("--insecure-loopback");
  }
  Json resources{{"requests", {{"cpu", std::to_string(request.devices_per_node)}}}};
  if (is_cuda) {
    resources["limits"] = {{"nvidia.com/gpu", std::to_string(request.devices_per_node)}};
  }
  return {{"name", kContainer},
          {"image", options.image},
          {"imagePullPolicy", "IfNotPresent"},
          {"args", std::move(args)},
          {"env",
           {from_field("INDEX", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
            from_field("ALLOCATION_ID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
            from_field("POD_IP", "status.podIP")}},
          {"securityContext",
           {{"allowPrivilegeEscalation", false},
            {"readOnlyRootFilesystem", true},
            {"capabilities", {{"drop", {"ALL"}}}}}},
          {"resources", std::move(resources)},
          {"volumeMounts", std::move(mounts)}};
}

Json pod_template(const LaunchRequest& request, const ManifestOptions& options) {
  Json volumes{{{"name", "state"}, {"emptyDir", Json::object()}},
               {{"name", "tmp"}, {"emptyDir", Json::object()}},
               {{"name", "shared-memory"}, {"emptyDir", {{"medium", "Memory"}}}}};
  if (options.with_tls) {
    volumes.push_back({{"name", "credentials"},
                       {"secret", {{"secretName", request.name}, {"defaultMode", 0440}}}});
  }
  Json spec{{"restartPolicy", "Never"},
            {"automountServiceAccountToken", false},
            {"enableServiceLinks", false},
            {"terminationGracePeriodSeconds", kGraceSeconds},
            {"securityContext",
             {{"runAsNonRoot", true},
              {"runAsUser", kUser},
              {"runAsGroup", kUser},
              {"fsGroup", kUser},
              {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
            {"containers", Json::array({container(request, options)})},
            {"volumes", std::move(volumes)}};
  if (request.time_limit < absl::InfiniteDuration()) {
    // A pod's, which begins with it; a Job's would count the time that it waits.
    spec["activeDeadlineSeconds"] = absl::ToInt64Seconds(request.time_limit);
  }
  return {{"metadata", {{"labels", labels(options.owner)}}}, {"spec", std::move(spec)}};
}

// null where there is nothing.
Json at(const Json& value, const std::string& pointer) {
  const Json::json_pointer path(pointer);
  return value.contains(path) ? value.at(path) : Json();
}

std::string joined(const std::string& reason, const std::string& message) {
  return (reason.empty() || message.empty() ? reason + message
                                            : absl::StrCat(reason, ": ", message))
      .substr(0, kMaxReason);
}

// Why a pod is no more, or does not run yet; "" where there is nothing to say.
std::string reason_of(const Json& pod) {
  for (const Json& condition : at(pod, "/status/conditions")) {
    const std::string type = text_at(condition, "/type");
    const bool holds = text_at(condition, "/status") == "True";
    if ((type == "DisruptionTarget" && holds) || (type == "PodScheduled" && !holds)) {
      return joined(text_at(condition, "/reason"), text_at(condition, "/message"));
    }
  }
  for (const Json& status : at(pod, "/status/containerStatuses")) {
    const std::string waiting = text_at(status, "/state/waiting/reason");
    if (!waiting.empty()) return joined(waiting, text_at(status, "/state/waiting/message"));
    const Json code = at(status, "/state/terminated/exitCode");
    if (code.is_number_integer() && code != 0) {
      return joined(text_at(status, "/state/terminated/reason"),
                    absl::StrCat("exit code ", code.get<int>()));
    }
  }
  return joined(text_at(pod, "/status/reason"), text_at(pod, "/status/message"));
}

}  // namespace

std::string text_at(const Json& value, const std::string& pointer) {
  const Json found = at(value, pointer);
  return found.is_string() ? found.get<std::string>() : "";
}

void merge_template(Json& base, const Json& patch) {
  if (base.is_object() && patch.is_object()) {
    for (const auto& [key, value] : patch.items()) merge_template(base[key], value);
  } else if (base.is_array() && patch.is_array()) {
    for (const Json& entry : patch) {
      const auto same = std::find_if(base.begin(), base.end(), [&](const Json& other) {
        return other.is_object() && entry.is_object() && other.contains("name") &&
               entry.contains("name") && other["name"] == entry["name"];
      });
      if (same == base.end()) {
        base.push_back(entry);
      } else {
        merge_template(*same, entry);
      }
    }
  } else {
    base = patch;
  }
}

Json job_manifest(const LaunchRequest& request, const ManifestOptions& options) {
  Json pod = pod_template(request, options);
  merge_template(pod, options.pod_template);
  return {{"apiVersion", "batch/v1"},
          {"kind", "Job"},
          {"metadata",
           {{"name", request.name},
            {"labels", labels(options.owner)},
            {"annotations", {{"tessera/job", request.job_id}}}}},
          {"spec",
           {{"completionMode", "Indexed"},
            {"completions", request.max_nodes},
            {"parallelism", request.max_nodes},
            // What follows a failure is the coordinator's to say.
            {"backoffLimit", 0},
            {"ttlSecondsAfterFinished", kKeepSeconds},
            {"template", std::move(pod)}}}};
}

Json secret_manifest(const std::string& name, const std::string& job_uid, const std::string& owner,
                     const std::string& authority, const std::vector<std::string>& tokens) {
  Json data{{"ca.pem", authority}};
  for (size_t i = 0; i < tokens.size(); ++i) data[absl::StrCat("token-", i)] = tokens[i];
  return {
      {"apiVersion", "v1"},
      {"kind", "Secret"},
      {"metadata",
       {{"name", name},
        {"labels", labels(owner)},
        {"ownerReferences",
         Json::array(
             {{{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"name", name}, {"uid", job_uid}}})}}},
      {"type", "Opaque"},
      {"stringData", std::move(data)}};
}

ClusterJob cluster_job(const Json& job, const Json& pods) {
  ClusterJob result{.name = text_at(job, "/metadata/name"), .id = text_at(job, "/metadata/uid")};
  int num_running = 0;
  std::string pod_reason;
  for (const Json& pod : pods) {
    if (text_at(pod, "/metadata/labels/job-name") != result.name) continue;
    num_running += text_at(pod, "/status/phase") == "Running";
    if (pod_reason.empty()) pod_reason = reason_of(pod);
  }
  const Json parallelism = at(job, "/spec/parallelism");
  const int wanted = parallelism.is_number_integer() ? parallelism.get<int>() : 1;
  for (const Json& condition : at(job, "/status/conditions")) {
    const std::string type = text_at(condition, "/type");
    if (text_at(condition, "/status") != "True" || (type != "Complete" && type != "Failed")) {
      continue;
    }
    result.state = ClusterJob::State::kEnded;
    result.reason = joined(type, pod_reason.empty() ? text_at(condition, "/message") : pod_reason);
    return result;
  }
  if (!text_at(job, "/metadata/deletionTimestamp").empty()) {
    result.state = ClusterJob::State::kEnding;
    result.reason = "is being deleted";
  } else if (num_running >= wanted) {
    result.state = ClusterJob::State::kRunning;
    result.num_nodes = wanted;
    result.reason = "Running";
  } else {
    result.reason = joined(absl::StrCat(num_running, " of ", wanted, " pods run"), pod_reason);
  }
  return result;
}

bool are_terminated(const Json& pods) {
  return std::all_of(pods.begin(), pods.end(), [](const Json& pod) {
    if (text_at(pod, "/spec/nodeName").empty()) return true;  // no machine has seen it
    const Json statuses = at(pod, "/status/containerStatuses");
    return statuses.is_array() && !statuses.empty() &&
           std::all_of(statuses.begin(), statuses.end(), [](const Json& status) {
             return at(status, "/state/terminated").is_object();
           });
  });
}

}  // namespace tessera::server
