#include "server/web/host_guard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace tessera::server {
namespace {

// "name:1", "[::1]:1" and "name" without the port.
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon == std::string_view::npos || host.back() == ']') return host;
  return host.substr(0, colon);
}

bool is_one_of(const std::vector<std::string>& names, std::string_view host) {
  if (host.empty()) return false;
  const std::string_view name = without_port(host);
  return std::any_of(names.begin(), names.end(), [name](const std::string& known) {
    return absl::EqualsIgnoreCase({name.data(), name.size()}, known);
  });
}

}  // namespace

HostGuard::HostGuard(std::vector<std::string> names) : names_(std::move(names)) {}

bool HostGuard::is_loopback(std::string_view host) {
  return is_one_of({"localhost", "127.0.0.1", "[::1]"}, host);
}

bool HostGuard::allows_host(std::string_view host) const {
  return is_loopback(host) || is_one_of(names_, host);
}

bool HostGuard::allows_origin(std::string_view origin, std::string_view host) {
  if (origin.empty()) return true;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.substr(0, scheme.size()) != scheme) continue;
    const std::string_view authority = origin.substr(scheme.size());
    return absl::EqualsIgnoreCase({authority.data(), authority.size()}, {host.data(), host.size()});
  }
  return false;
}

bool HostGuard::allows_site(std::string_view site) {
  return site.empty() || site == "same-origin" || site == "none";
}

}  // namespace tessera::server
