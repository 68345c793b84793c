#include "server/launchers/kubernetes.h"

#include <httplib.h>

#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/security/private_file.h"

namespace tessera::server {
namespace {

using Json = nlohmann::json;

constexpr int kConnectSeconds = 5;
constexpr int kReadSeconds = 10;
constexpr int kMaxPages = 100;
constexpr int kPageSize = 500;

absl::Status status_of(int code, const std::string& message) {
  switch (code) {
    case 404:
      return absl::NotFoundError(message);
    case 409:
      return absl::AlreadyExistsError(message);
    case 400:
    case 413:
    case 422:
      return absl::FailedPreconditionError(message);
    default:
      // Not let in, over a quota, too many calls, or out of order: none is the job's mistake, and
      // each may be mended.
      return absl::UnavailableError(message);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Launcher>> KubernetesLauncher::make(
    KubernetesOptions options, std::shared_ptr<Enrolment> enrolment) {
  const size_t colon = options.api.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || absl::StrContains(options.api, "/") ||
      !absl::SimpleAtoi(options.api.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kubernetes is \"", options.api, "\", must be HOST:PORT"));
  }
  if (options.image.empty()) {
    return absl::InvalidArgumentError(
        "--kubernetes-image must be given with --kubernetes: the image of tessera-agent");
  }
  Json pod_template = Json::object();
  if (!options.pod_template.empty()) {
    std::ifstream file(options.pod_template);
    pod_template = Json::parse(file, nullptr, false);
    if (!pod_template.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat("--kubernetes-template is \"",
                                                     options.pod_template.string(),
                                                     "\", must be a file of a JSON object"));
    }
  }
  return std::unique_ptr<Launcher>(
      new KubernetesLauncher(std::move(options), std::move(enrolment), std::move(pod_template)));
}

std::string KubernetesLauncher::path_of(const std::string& resource,
                                        const std::string& name) const {
  const std::string group = resource == "jobs" ? "/apis/batch/v1" : "/api/v1";
  return absl::StrCat(group, "/namespaces/", options_.name_space, "/", resource,
                      name.empty() ? "" : "/", name);
}

absl::StatusOr<Json> KubernetesLauncher::call(const std::string& method, const std::string& path,
                                              const Json& body) const {
  httplib::Client client(absl::StrCat("https://", options_.api));
  client.set_connection_timeout(kConnectSeconds);
  client.set_read_timeout(kReadSeconds);
  client.set_write_timeout(kReadSeconds);
  if (!options_.ca.empty()) client.set_ca_cert_path(options_.ca.string());
  client.enable_server_certificate_verification(true);
  httplib::Request request;
  request.method = method;
  request.path = path;
  request.set_header("Accept", "application/json");
  if (!options_.token.empty()) {
    const auto token = read_small(options_.token);
    if (!token.ok()) {
      return absl::UnavailableError(
          absl::StrCat("--kubernetes-token-file: ", token.status().message()));
    }
    request.set_header("Authorization",
                       absl::StrCat("Bearer ", absl::StripAsciiWhitespace(*token)));
  }
  if (!body.is_null()) {
    request.body = body.dump();
    request.set_header("Content-Type", "application/json");
  }
  const httplib::Result result = client.send(request);
  if (!result) {
    return absl::UnavailableError(absl::StrCat("no answer of the API server at ", options_.api,
                                               ": ", httplib::to_string(result.error())));
  }
  Json answer = Json::parse(result->body, nullptr, false);
  if (result->status >= 200 && result->status < 300 && answer.is_object()) return answer;
  const std::string message = text_at(answer, "/message");
  return status_of(result->status,
                   absl::StrCat("the API server answered ", result->status,
                                message.empty() ? "" : absl::StrCat(": ", message)));
}

absl::StatusOr<Json> KubernetesLauncher::items(const std::string& path,
                                               const std::string& selector) const {
  Json all = Json::array();
  std::string next;
  for (int page = 0; page < kMaxPages; ++page) {
    auto answer = call(
        "GET",
        absl::StrCat(path, "?limit=", kPageSize,
                     "&labelSelector=", httplib::detail::encode_query_param(selector),
                     next.empty() ? "" : "&continue=", httplib::detail::encode_query_param(next)));
    if (!answer.ok()) {
      return absl::IsNotFound(answer.status()) ? absl::UnavailableError(answer.status().message())
                                               : answer.status();
    }
    if (!answer->contains("items") || !(*answer)["items"].is_array()) {
      return absl::UnavailableError("the API server answered without items");
    }
    for (Json& item : (*answer)["items"]) all.push_back(std::move(item));
    next = text_at(*answer, "/metadata/continue");
    if (next.empty()) return all;
  }
  return absl::UnavailableError(
      absl::StrCat("the API server has more than ", kMaxPages * kPageSize, " objects"));
}

absl::StatusOr<Json> KubernetesLauncher::make_job(const LaunchRequest& request) const {
  const auto authority = enrolment_->authority();
  if (!authority.ok()) return authority.status();
  const ManifestOptions options{.owner = options_.owner,
                                .image = options_.image,
                                .coordinator = enrolment_->coordinator(),
                                .with_tls = !authority->empty(),
                                .pod_template = pod_template_};
  auto made = call("POST", path_of("jobs"), job_manifest(request, options));
  if (absl::IsAlreadyExists(made.status())) return call("GET", path_of("jobs", request.name));
  return made;
}

absl::Status KubernetesLauncher::make_secret(const LaunchRequest& request,
                                             const std::string& uid) const {
  const auto authority = enrolment_->authority();
  if (!authority.ok() || authority->empty()) return authority.status();
  const auto before = call("GET", path_of("secrets", request.name));
  if (!absl::IsNotFound(before.status())) return before.status();
  const auto tokens = enrolment_->tokens(request.name, request.max_nodes);
  if (!tokens.ok()) return tokens.status();
  const auto made = call("POST", path_of("secrets"),
                         secret_manifest(request.name, uid, options_.owner, *authority, *tokens));
  return absl::IsAlreadyExists(made.status()) ? absl::OkStatus() : made.status();
}

absl::StatusOr<std::string> KubernetesLauncher::submit(const LaunchRequest& request) {
  const auto job = make_job(request);
  if (!job.ok()) {
    // A namespace that is not there yet may come.
    return absl::IsNotFound(job.status()) ? absl::UnavailableError(job.status().message())
                                          : job.status();
  }
  const std::string uid = text_at(*job, "/metadata/uid");
  if (uid.empty()) return absl::UnavailableError("the API server made a Job without a uid");
  const absl::Status secret = make_secret(request, uid);
  if (!secret.ok()) return absl::UnavailableError(secret.message());
  return uid;
}

absl::StatusOr<std::vector<ClusterJob>> KubernetesLauncher::list() {
  const std::string selector = absl::StrCat(kOwnerLabel, "=", options_.owner);
  const auto jobs = items(path_of("jobs"), selector);
  if (!jobs.ok()) return jobs.status();
  const auto pods = items(path_of("pods"), selector);
  if (!pods.ok()) return pods.status();
  std::vector<ClusterJob> result;
  for (const Json& job : *jobs) result.push_back(cluster_job(job, *pods));
  return result;
}

absl::StatusOr<bool> KubernetesLauncher::is_gone(const ClusterJob& job) {
  const auto pods = items(path_of("pods"), absl::StrCat("job-name=", job.name));
  if (!pods.ok()) return pods.status();
  return are_terminated(*pods);
}

absl::Status KubernetesLauncher::remove(const ClusterJob& job) {
  // Its pods first, so that a Job is there for as long as one of them may be.
  const Json how{{"apiVersion", "v1"},
                 {"kind", "DeleteOptions"},
                 {"propagationPolicy", "Foreground"},
                 {"preconditions", {{"uid", job.id}}}};
  for (const char* resource : {"jobs", "secrets"}) {
    const bool is_job = resource == absl::string_view("jobs");
    const auto done = call("DELETE", path_of(resource, job.name), is_job ? how : Json(nullptr));
    if (!done.ok() && !absl::IsNotFound(done.status())) return done.status();
  }
  enrolment_->revoke(job.name);
  return absl::OkStatus();
}

}  // namespace tessera::server
