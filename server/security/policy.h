// Which role may call which method: one table, and nothing is allowed that it does not name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/security/identity.h"

namespace tessera::server {

// What of the request decides whether the caller's projects allow the call.
enum class Subject {
  kNone,
  // `field` is a project.
  kProject,
  // `field` is the id or the name of a job. Empty where the method allows that: none is meant.
  kJob,
  // Nothing: the answer holds only what the caller may see.
  kAnswer,
};

struct Rule {
  // As in "tessera.v1.Coordinator/GetJob".
  std::string_view method;
  // Role::kX as 1 << kX.
  unsigned roles;
  Subject subject;
  // Path in the request, as in "spec.project".
  std::string_view field;
  // Allowed calls are written to the audit log, too; refused ones always are.
  bool is_audited;
};

std::span<const Rule> policy();

// nullptr: there is none, and nobody may call it.
const Rule* rule_of(std::string_view method);

inline bool permits(const Rule& rule, Role role) {
  return (rule.roles >> static_cast<unsigned>(role) & 1) != 0;
}

// INTERNAL: a method of the services (by full name) has no rule, a rule has no method, or its field
// is no string of the request. The message names all of them.
absl::Status check_policy(const std::vector<std::string>& services);

// The least role that may call the method, as in "submitter".
std::string_view least_role(const Rule& rule);

// The table in Markdown, as docs/security.md has it.
std::string policy_markdown();

}  // namespace tessera::server
