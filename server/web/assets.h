// The dashboard's files, built from client/web/ and linked in.
#pragma once

#include <span>
#include <string_view>

namespace tessera::server {

struct Asset {
  std::string_view path;  // as in a URL: "/assets/index-B4x1.js"
  std::string_view type;  // of media
  std::string_view bytes;
  // Its name changes with its bytes: a browser may keep it.
  bool is_immutable;
};

// In no order. "/index.html" is among them.
std::span<const Asset> assets();

}  // namespace tessera::server
