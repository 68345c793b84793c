// Mistakes of the user and limits of the machine, as the engine throws them. worker/trainer/main.cc
// catches once and turns them into a Failure event. NetworkError is in
// worker/parallel/collectives.h.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

// `field` is the path in the job file ("data.train"); `message` one sentence with the value and the
// rule.
class UserError : public std::runtime_error {
 public:
  UserError(std::string field, const std::string& message)
      : std::runtime_error(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// An allocation that the machine refused; the message says for what owner and how much is held.
class MemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tessera
