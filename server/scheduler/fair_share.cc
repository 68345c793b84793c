#include "server/scheduler/fair_share.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::server {

double FairShare::decayed(const Project& project, absl::Duration now) const {
  const double half_lives = absl::FDivDuration(now - project.since, half_life_);
  return project.held + (project.mean - project.held) * std::exp2(-std::max(0.0, half_lives));
}

void FairShare::set(const std::string& project, const ProjectPolicy& policy) {
  projects_[project].policy = policy;
}

void FairShare::restore(const std::string& name, double mean, absl::Duration age,
                        absl::Duration now) {
  Project& project = projects_[name];
  project.mean = mean;
  project.since = now - std::max(absl::ZeroDuration(), age);
}

void FairShare::add(const std::string& name, int devices, absl::Duration now) {
  Project& project = projects_[name];
  project.mean = decayed(project, now);
  project.since = now;
  project.held += devices;
}

double FairShare::mean(const std::string& name, absl::Duration now) const {
  const auto project = projects_.find(name);
  return project == projects_.end() ? 0 : decayed(project->second, now);
}

int FairShare::held(const std::string& name) const {
  const auto project = projects_.find(name);
  return project == projects_.end() ? 0 : project->second.held;
}

const ProjectPolicy& FairShare::policy(const std::string& name) const {
  static const ProjectPolicy kDefault;
  const auto project = projects_.find(name);
  return project == projects_.end() ? kDefault : project->second.policy;
}

int FairShare::left(const std::string& name) const {
  const std::optional<int>& most = policy(name).max_devices;
  return most ? std::max(0, *most - held(name)) : std::numeric_limits<int>::max();
}

double FairShare::score(const std::string& name, absl::Duration now) const {
  const auto project = projects_.find(name);
  if (project == projects_.end()) return 0;
  const double ahead = (decayed(project->second, now) + project->second.held) / 2;
  return ahead / project->second.policy.weight;
}

}  // namespace tessera::server
