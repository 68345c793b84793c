// Single fields of a job spec, by their names: what a plan changes.
#pragma once

#include <string>

#include "tessera/v1/job.pb.h"

namespace tessera::spec {

// `path` is as in a job file: "memory.sharding". Fields of lists and durations are not reached.

// Whether the field is set.
bool has_field(const v1::JobSpec& spec, const std::string& path);

// As a job file writes it: "true", "512", "zero2". Empty where it is not set, or does not exist.
std::string get_field(const v1::JobSpec& spec, const std::string& path);

// Sets the field, and makes the sections around it. False, and nothing done, where there is no such
// field or `text` is no value of its type. Rules are not checked.
bool set_field(v1::JobSpec& spec, const std::string& path, const std::string& text);

}  // namespace tessera::spec
