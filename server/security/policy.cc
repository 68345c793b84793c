#include "server/security/policy.h"

#include <algorithm>
#include <array>
#include <set>

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr unsigned bit(Role role) { return 1U << static_cast<unsigned>(role); }

constexpr unsigned kOperators = bit(Role::kOperator) | bit(Role::kLocal);
constexpr unsigned kSubmitters = kOperators | bit(Role::kSubmitter);
constexpr unsigned kViewers = kSubmitters | bit(Role::kViewer);
constexpr unsigned kAgents = bit(Role::kAgent);
constexpr unsigned kLocalAgents = kAgents | bit(Role::kLocal);
constexpr unsigned kEnrollers = bit(Role::kEnroller);

constexpr std::array kPolicy{
    Rule{"tessera.v1.Coordinator/SubmitJob", kSubmitters, Subject::kProject, "spec.project", true},
    Rule{"tessera.v1.Coordinator/GetJob", kViewers, Subject::kJob, "id", false},
    Rule{"tessera.v1.Coordinator/ListJobs", kViewers, Subject::kAnswer, "", false},
    Rule{"tessera.v1.Coordinator/CancelJob", kSubmitters, Subject::kJob, "id", true},
    Rule{"tessera.v1.Coordinator/SuspendJob", kSubmitters, Subject::kJob, "id", true},
    Rule{"tessera.v1.Coordinator/ResumeJob", kSubmitters, Subject::kJob, "id", true},
    Rule{"tessera.v1.Coordinator/TraceJob", kSubmitters, Subject::kJob, "id", true},
    Rule{"tessera.v1.Coordinator/RecordCollectives", kSubmitters, Subject::kJob, "id", false},
    Rule{"tessera.v1.Coordinator/ListQueue", kViewers, Subject::kAnswer, "", false},
    Rule{"tessera.v1.Coordinator/SetProject", kOperators, Subject::kProject, "project.name", true},
    Rule{"tessera.v1.Coordinator/ListProjects", kViewers, Subject::kAnswer, "", false},
    Rule{"tessera.v1.Coordinator/WatchJob", kViewers, Subject::kJob, "id", false},
    Rule{"tessera.v1.Coordinator/ListNodes", kViewers, Subject::kAnswer, "", false},
    Rule{"tessera.v1.Coordinator/PlanJob", kSubmitters, Subject::kProject, "plan.spec.project",
         false},
    Rule{"tessera.v1.Coordinator/ProfileData", kSubmitters, Subject::kProject,
         "inspect.spec.project", false},
    Rule{"tessera.v1.Coordinator/Generate", kSubmitters, Subject::kJob, "job", false},
    Rule{"tessera.v1.AgentService/Session", kLocalAgents, Subject::kNone, "", true},
    Rule{"tessera.v1.Access/CreateToken", kOperators, Subject::kNone, "", true},
    Rule{"tessera.v1.Access/ListCredentials", kOperators, Subject::kNone, "", false},
    Rule{"tessera.v1.Access/RevokeCredential", kOperators, Subject::kNone, "", true},
    Rule{"tessera.v1.Access/Enrol", kEnrollers, Subject::kNone, "", true},
    Rule{"tessera.v1.Access/RenewCertificate", kAgents, Subject::kNone, "", true},
};

// The field at the path, if it is a string; nullptr: it is not.
const FieldDescriptor* string_at(const Descriptor* message, std::string_view path) {
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view name :
       absl::StrSplit(absl::string_view(path.data(), path.size()), '.')) {
    field = message == nullptr ? nullptr : message->FindFieldByName(std::string(name));
    if (field == nullptr || field->is_repeated()) return nullptr;
    message = field->message_type();
  }
  return field != nullptr && field->type() == FieldDescriptor::TYPE_STRING ? field : nullptr;
}

std::string_view scope_text(const Rule& rule) {
  switch (rule.subject) {
    case Subject::kNone:
      return "";
    case Subject::kProject:
      return "the project that is named";
    case Subject::kJob:
      return "the job's project";
    case Subject::kAnswer:
      return "the answer leaves others out";
  }
  return "";
}

}  // namespace

std::string_view role_name(Role role) {
  constexpr std::array<std::string_view, 6> kNames{"viewer", "submitter", "operator",
                                                   "local",  "agent",     "enrolment token"};
  return kNames[static_cast<size_t>(role)];
}

std::span<const Rule> policy() { return kPolicy; }

const Rule* rule_of(std::string_view method) {
  const auto* found = std::find_if(kPolicy.begin(), kPolicy.end(),
                                   [&](const Rule& rule) { return rule.method == method; });
  return found == kPolicy.end() ? nullptr : found;
}

absl::Status check_policy(const std::vector<std::string>& services) {
  std::vector<std::string> mistakes;
  std::set<std::string, std::less<>> methods;
  for (const std::string& name : services) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    if (service == nullptr) mistakes.push_back(absl::StrCat(name, " is no service"));
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      const auto* method = service->method(i);
      const std::string path = absl::StrCat(name, "/", method->name());
      methods.insert(path);
      const Rule* rule = rule_of(path);
      if (rule == nullptr) {
        mistakes.push_back(absl::StrCat(path, " has no row"));
      } else if (!rule->field.empty() && string_at(method->input_type(), rule->field) == nullptr) {
        mistakes.push_back(
            absl::StrCat(path, ": ", std::string(rule->field), " is no string of its request"));
      }
    }
  }
  for (const Rule& rule : kPolicy) {
    if (!methods.contains(rule.method)) {
      mistakes.push_back(absl::StrCat(std::string(rule.method), " is no method"));
    }
  }
  if (mistakes.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the table of roles (server/security/policy.cc) does not fit the services: ",
                   absl::StrJoin(mistakes, "; ")));
}

std::string_view least_role(const Rule& rule) {
  for (const Role role :
       {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kAgent, Role::kEnroller}) {
    if (permits(rule, role)) return role_name(role);
  }
  return role_name(Role::kLocal);
}

std::string policy_markdown() {
  std::string table = "| method | least role | projects | audited |\n|---|---|---|---|\n";
  for (const Rule& rule : kPolicy) {
    const std::string_view method = rule.method.substr(rule.method.rfind('.') + 1);
    absl::StrAppend(&table, "| ", std::string(method), " | ", std::string(least_role(rule)), " | ",
                    std::string(scope_text(rule)), " | ",
                    rule.is_audited ? "always" : "when refused", " |\n");
  }
  return table;
}

}  // namespace tessera::server
