// Who makes a call.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::server {

enum class Role {
  kViewer,
  kSubmitter,
  kOperator,
  // Of this machine, over the Unix socket: an operator, who may be an agent as well.
  kLocal,
  // Has a certificate of our authority.
  kAgent,
  // Has an enrolment token, and may do nothing else with it.
  kEnroller,
};

// As in "submitter".
std::string_view role_name(Role role);

struct Identity {
  Role role = Role::kViewer;
  // For the audit log and for limits: "local", "token ID", "agent NODE".
  std::string name;
  // Id of the credential. Empty: local.
  std::string credential;
  // Its jobs may be of these projects alone. Empty: of all.
  std::vector<std::string> projects;
  // Of an agent: the node that it is. Of an enrolment token: the only one it is for, if any.
  std::string node;

  bool is_limited() const { return !projects.empty(); }
  bool sees(std::string_view project) const {
    return projects.empty() ||
           std::find(projects.begin(), projects.end(), project) != projects.end();
  }
};

}  // namespace tessera::server
