#include "server/security/gate.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/rpc/error_details.pb.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kDefaultProject[] = "default";
constexpr std::string_view kAccess = "tessera.v1.Access/";
constexpr char kSubmit[] = "tessera.v1.Coordinator/SubmitJob";

absl::Status denied(std::string_view reason, std::string_view message) {
  return error(absl::StatusCode::kPermissionDenied, reason, message);
}

// The message that holds the last field of the path, and that field. Requires: check_policy().
std::pair<Message*, const FieldDescriptor*> field_at(Message& request, std::string_view path) {
  Message* message = &request;
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view name :
       absl::StrSplit(absl::string_view(path.data(), path.size()), '.')) {
    if (field != nullptr) message = message->GetReflection()->MutableMessage(message, field);
    field = message->GetDescriptor()->FindFieldByName(std::string(name));
  }
  return {message, field};
}

std::string value_at(Message& request, std::string_view path) {
  const auto [message, field] = field_at(request, path);
  return message->GetReflection()->GetString(*message, field);
}

// The address without its port: a client makes many connections.
std::string host_of(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

AuditFields subject_fields(const Rule* rule, Message* request) {
  AuditFields fields;
  if (rule == nullptr || request == nullptr || rule->field.empty()) return fields;
  const bool is_job = rule->subject == Subject::kJob;
  fields.emplace_back(is_job ? "job" : "project", value_at(*request, rule->field));
  if (rule->method == kSubmit) {
    fields.emplace_back("name", value_at(*request, "spec.name"));
    fields.emplace_back("request_id", value_at(*request, "request_id"));
  }
  return fields;
}

}  // namespace

absl::Status Gate::check_rate(const std::string& client) const {
  const std::optional<absl::Duration> wait = limits_.take(client);
  if (!wait) return absl::OkStatus();
  absl::Status status = error(
      absl::StatusCode::kResourceExhausted, "RATE_LIMIT",
      absl::StrCat(client, " makes too many calls; try again in ", absl::FormatDuration(*wait)));
  google::rpc::RetryInfo retry;
  const absl::Duration rounded = absl::Ceil(*wait, absl::Milliseconds(1));
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(rounded));
  retry.mutable_retry_delay()->set_nanos(static_cast<int>(
      absl::ToInt64Nanoseconds(rounded - absl::Seconds(absl::ToInt64Seconds(rounded)))));
  status.SetPayload(kRetryInfoType, absl::Cord(retry.SerializeAsString()));
  return status;
}

absl::Status Gate::check_job(const Identity& identity, const Rule& rule, Message& request) const {
  const auto [message, field] = field_at(request, rule.field);
  const std::string name = message->GetReflection()->GetString(*message, field);
  // Generate may name a model instead.
  if (name.empty()) return absl::OkStatus();
  const absl::StatusOr<JobPlace> job = find_job_(name);
  if (job.ok() && identity.sees(job->project)) {
    // By the time of the handler another job may have the name.
    message->GetReflection()->SetString(message, field, job->id);
    return absl::OkStatus();
  }
  const absl::Status& status = job.status();
  if (absl::IsInternal(status) || absl::IsUnavailable(status) ||
      absl::IsResourceExhausted(status)) {
    return status;
  }
  // One answer for what is not there and what is not theirs: else ids could be guessed.
  return denied("PROJECT",
                absl::StrCat("no job \"", name, "\" is in what ", identity.name,
                             " may see: project ", absl::StrJoin(identity.projects, ", ")));
}

absl::Status Gate::check_subject(const Identity& identity, const Rule& rule,
                                 Message& request) const {
  if (!identity.is_limited()) return absl::OkStatus();
  if (rule.subject == Subject::kJob) return check_job(identity, rule, request);
  if (rule.subject != Subject::kProject) return absl::OkStatus();
  std::string project = value_at(request, rule.field);
  if (project.empty()) project = kDefaultProject;
  if (identity.sees(project)) return absl::OkStatus();
  return denied("PROJECT",
                absl::StrCat(std::string(rule.field), " is \"", project, "\", and ", identity.name,
                             " is of project ", absl::StrJoin(identity.projects, ", ")));
}

absl::StatusOr<Identity> Gate::admit(const grpc::CallbackServerContext& context,
                                     std::string_view method, Message* request) const {
  return admit(context.peer(), authenticator_.identify(context), method, request);
}

absl::StatusOr<Identity> Gate::admit(const WebCaller& caller, std::string_view method,
                                     Message* request) const {
  return admit(caller.peer, authenticator_.identify(caller), method, request);
}

absl::StatusOr<Identity> Gate::admit(const std::string& peer, absl::StatusOr<Identity> identity,
                                     std::string_view method, Message* request) const {
  if (!identity.ok() || identity->role != Role::kLocal) {
    const std::string client = identity.ok() ? identity->name : host_of(peer);
    if (absl::Status status = check_rate(client); !status.ok()) return status;
  }
  const Rule* rule = rule_of(method);
  absl::Status status = identity.status();
  if (status.ok() && (rule == nullptr || !permits(*rule, identity->role))) {
    status = denied("ROLE", absl::StrCat(std::string(method), " takes the role ",
                                         std::string(rule == nullptr ? "none" : least_role(*rule)),
                                         ", and ", identity->name, " has the role ",
                                         std::string(role_name(identity->role))));
  }
  AuditFields fields = subject_fields(rule, request);
  if (status.ok() && request != nullptr) status = check_subject(*identity, *rule, *request);
  if (!status.ok() || rule->is_audited) {
    status = audit(peer, identity.ok() ? *identity : Identity{.name = "nobody"}, method, status,
                   std::move(fields));
  }
  if (!status.ok()) return status;
  return identity;
}

absl::Status Gate::audit(const std::string& peer, const Identity& identity, std::string_view method,
                         const absl::Status& status, AuditFields more) const {
  AuditFields fields{{"who", identity.name}, {"peer", peer}, {"method", std::string(method)}};
  if (identity.name != "nobody") fields.emplace_back("role", role_name(identity.role));
  fields.insert(fields.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  fields.emplace_back("decision", status.ok() ? "allowed" : "refused");
  if (!status.ok()) fields.emplace_back("why", std::string(status.message()));
  // Who asked for access, and was given it, has to be known after a crash, too.
  const absl::Status written = log_.write(fields, status.ok() && method.starts_with(kAccess));
  // A refusal stands, written or not.
  return status.ok() ? written : status;
}

}  // namespace tessera::server
