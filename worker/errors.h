// Mistakes of the user, as the engine throws them. worker/trainer/main.cc catches once and turns them into a
// Failure event.
#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

// `field` is the path in the job file ("data.train"); `message` one sentence with the value and the rule.
class UserError : public std::runtime_error {
 public:
  UserError(std::string field, const std::string& message)
      : std::runtime_error(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

}  // namespace tessera
