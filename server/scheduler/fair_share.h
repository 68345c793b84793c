// What each project had of the devices, and what it may have. Pure.
//
// A project's mean is of the devices it held, where a time counts half as much as one that is a
// half-life later. Who has least by mean and weight comes first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace tessera::server {

struct ProjectPolicy {
  double weight = 1;
  // Devices at a time. Absent: no bound.
  std::optional<int> max_devices;
};

class FairShare {
 public:
  explicit FairShare(absl::Duration half_life) : half_life_(half_life) {}

  void set(const std::string& project, const ProjectPolicy& policy);
  // What was known before this process: a mean of `age` ago, since when the project held what it
  // holds now.
  void restore(const std::string& project, double mean, absl::Duration age, absl::Duration now);
  // The project holds so many devices more, or fewer.
  void add(const std::string& project, int devices, absl::Duration now);

  double mean(const std::string& project, absl::Duration now) const;
  int held(const std::string& project) const;
  // Devices that it may take beside those it holds; the largest int where nothing bounds it.
  int left(const std::string& project) const;
  const ProjectPolicy& policy(const std::string& project) const;

  // The lowest comes first: the mean that the project will have a half-life from now if nothing
  // changes, over its weight. It grows with every device that the project takes now.
  double score(const std::string& project, absl::Duration now) const;

 private:
  struct Project {
    ProjectPolicy policy;
    int held = 0;
    // At `since`.
    double mean = 0;
    absl::Duration since;
  };
  double decayed(const Project& project, absl::Duration now) const;

  const absl::Duration half_life_;
  std::map<std::string, Project> projects_;
};

}  // namespace tessera::server
