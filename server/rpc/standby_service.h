// What a coordinator answers while another one leads: UNAVAILABLE, and where the leader is.
#pragma once

#include <mutex>
#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "absl/status/status.h"

namespace tessera::server {

// Thread safe.
class StandbyService final : public grpc::CallbackGenericService {
 public:
  // What is known of the leader; empty: nothing.
  void set_leader(const std::string& address);
  // Why nobody leads, as far as is known here; empty: somebody does.
  void set_obstacle(const std::string& obstacle);

  // UNAVAILABLE with an ErrorInfo of the reason STANDBY.
  absl::Status status() const;

  // Ends any call with status().
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override;

 private:
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::string leader_;
  std::string obstacle_;
};

}  // namespace tessera::server
