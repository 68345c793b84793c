// The signals that end a program, as a stop request.
#pragma once

#include <stop_token>

namespace tessera::cli {

// SIGINT, SIGTERM and SIGHUP, which it blocks for all threads: make it before anything starts one.
// A second signal while the first is still being answered ends the process.
class Signals {
 public:
  Signals();

  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
};

}  // namespace tessera::cli
