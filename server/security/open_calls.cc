#include "server/security/open_calls.h"

#include <iterator>
#include <utility>

namespace tessera::server {

void OpenCalls::add(const std::string& credential, std::weak_ptr<OpenCall> call) {
  if (credential.empty()) return;
  const std::lock_guard lock(mutex_);
  calls_[credential].push_back(std::move(call));
}

void OpenCalls::check() {
  std::vector<std::pair<std::weak_ptr<OpenCall>, absl::Status>> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = calls_.begin(); entry != calls_.end();) {
      auto& [credential, calls] = *entry;
      std::erase_if(calls, [](const auto& call) { return call.expired(); });
      const absl::Status status = credentials_.check(credential);
      if (!status.ok()) {
        for (auto& call : calls) ended.emplace_back(std::move(call), status);
        calls.clear();
      }
      entry = calls.empty() ? calls_.erase(entry) : std::next(entry);
    }
  }
  // Without the lock: a call that ends may let others begin.
  for (const auto& [call, status] : ended) {
    if (const auto open = call.lock()) open->interrupt(status);
  }
}

}  // namespace tessera::server
