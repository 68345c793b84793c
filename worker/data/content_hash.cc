#include "worker/data/content_hash.h"

#include <array>
#include <cinttypes>
#include <cstdio>

namespace tessera {

void ContentHash::add(std::string_view part) {
  const uint64_t size = part.size();
  update(&size, sizeof size);
  update(part.data(), part.size());
}

std::string ContentHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64 "%016" PRIx64, uint64_t{hash.high64},
                uint64_t{hash.low64});
  return text.data();
}

}  // namespace tessera
