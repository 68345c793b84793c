#include "server/security/token_rules.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxNodeLength = 253;
constexpr size_t kMaxProjectLength = 63;
constexpr int kMaxProjects = 64;
constexpr size_t kMaxDescriptionLength = 256;
constexpr int64_t kMaxLifetimeSeconds = 366 * 24 * 3600;

bool is_name(const std::string& name, size_t max_length) {
  return !name.empty() && name.size() <= max_length &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::string must_be_name(const std::string& field, const std::string& value, size_t max_length) {
  return absl::StrCat(field, " is \"", value, "\", must have 1 to ", max_length,
                      " letters, digits, '-', '_' and '.'");
}

}  // namespace

absl::Status check_node_name(const std::string& field, const std::string& node) {
  if (is_name(node, kMaxNodeLength)) return absl::OkStatus();
  return invalid_request({{field, must_be_name(field, node, kMaxNodeLength)}});
}

absl::Status check_token_request(const v1::CreateTokenRequest& request) {
  std::vector<spec::Violation> violations;
  const bool is_agent = request.role() == v1::Credential::AGENT;
  if (!v1::Credential::Role_IsValid(request.role()) ||
      request.role() == v1::Credential::ROLE_UNSPECIFIED) {
    violations.push_back({"role", "role must be VIEWER, SUBMITTER, OPERATOR or AGENT"});
  }
  const bool is_limitable =
      request.role() == v1::Credential::VIEWER || request.role() == v1::Credential::SUBMITTER;
  if (!request.projects().empty() && !is_limitable) {
    violations.push_back({"projects", "projects must be empty but for VIEWER and SUBMITTER"});
  }
  if (request.projects_size() > kMaxProjects) {
    violations.push_back(
        {"projects", absl::StrCat("projects has ", request.projects_size(), " entries, must have ",
                                  kMaxProjects, " at most")});
  }
  for (const std::string& project : request.projects()) {
    if (is_name(project, kMaxProjectLength)) continue;
    violations.push_back({"projects", must_be_name("projects", project, kMaxProjectLength)});
  }
  if (!request.node().empty() && !is_agent) {
    violations.push_back({"node", "node must be empty but for AGENT"});
  } else if (!request.node().empty() && !is_name(request.node(), kMaxNodeLength)) {
    violations.push_back({"node", must_be_name("node", request.node(), kMaxNodeLength)});
  }
  if (request.description().size() > kMaxDescriptionLength) {
    violations.push_back(
        {"description", absl::StrCat("description has ", request.description().size(),
                                     " bytes, must have ", kMaxDescriptionLength, " at most")});
  }
  const int64_t seconds = request.lifetime().seconds();
  if (seconds < 1 || seconds > kMaxLifetimeSeconds) {
    violations.push_back(
        {"lifetime", absl::StrCat("lifetime is ", seconds, " s, must be a second to 366 days")});
  }
  return violations.empty() ? absl::OkStatus() : invalid_request(violations);
}

}  // namespace tessera::server
