#include "proto/spec/addresses.h"

namespace tessera::spec {
namespace {

bool begins_address(std::string_view piece) {
  if (piece.starts_with("unix:")) return true;
  return piece.find(':') != piece.npos && piece.find('/') == piece.npos;
}

}  // namespace

std::vector<std::string> split_addresses(std::string_view text) {
  std::vector<std::string> addresses;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view piece = text.substr(0, comma);
    if (!addresses.empty() && addresses.back().starts_with("unix:") && !begins_address(piece)) {
      addresses.back().append(",").append(piece);
    } else {
      addresses.emplace_back(piece);
    }
    if (comma == text.npos) return addresses;
    text.remove_prefix(comma + 1);
  }
}

bool may_be_elsewhere(std::string_view reason) {
  return reason.empty() || reason == "STANDBY" || reason == "SHUTTING_DOWN" || reason == "STORE";
}

}  // namespace tessera::spec
