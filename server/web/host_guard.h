// Who may ask: a page of another site can make a browser send requests here, under a name of its
// own (DNS rebinding) or across origins. Programs that are no browsers pass with any Origin they
// leave out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::server {

class HostGuard {
 public:
  // Names without port, beside those of the loopback; case does not matter.
  explicit HostGuard(std::vector<std::string> names);

  // Whether a Host header names this machine, with or without a port.
  bool allows_host(std::string_view host) const;

  // Whether it names the loopback itself.
  static bool is_loopback(std::string_view host);

  // Whether a page of `origin` (the Origin header; empty: none) may read what is asked of `host`:
  // only a page that came from there.
  static bool allows_origin(std::string_view origin, std::string_view host);

  // Whether what a browser says about the site of the asking page (Sec-Fetch-Site; empty: nothing)
  // is that it is ours, or that there is no page.
  static bool allows_site(std::string_view site);

 private:
  std::vector<std::string> names_;
};

}  // namespace tessera::server
