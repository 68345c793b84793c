// Calls that stay open (watches, generation, agents' sessions, the dashboard's streams), by the
// credential that they came with: they end when it is revoked, or its time is over.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/security/credentials.h"

namespace tessera::server {

// Thread safe.
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  // Ends the call with the status, at its next step where it is in the middle of one.
  virtual void interrupt(const absl::Status& status) = 0;
};

// Thread safe.
class OpenCalls {
 public:
  // Outlives this.
  explicit OpenCalls(const Credentials& credentials) : credentials_(credentials) {}

  // `credential`: an Identity's. One that is empty lasts as long as the service.
  void add(const std::string& credential, std::weak_ptr<OpenCall> call);

  // Interrupts the calls whose credential does not hold any more, with UNAUTHENTICATED and its
  // reason. To be called every second or so, and when one was revoked.
  void check();

 private:
  const Credentials& credentials_;
  std::mutex mutex_;
  // Guarded by mutex_: by credential.
  std::map<std::string, std::vector<std::weak_ptr<OpenCall>>> calls_;
};

}  // namespace tessera::server
