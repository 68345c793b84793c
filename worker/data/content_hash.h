// A hash of bytes, at the speed of memory. Not for secrets: it tells contents apart that nobody
// made to collide.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// XXH3, 128 bits.
class ContentHash {
 public:
  ContentHash() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~ContentHash() { XXH3_freeState(state_); }
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void update(const void* data, size_t size) { XXH3_128bits_update(state_, data, size); }
  // With its length, so that parts cannot run into each other.
  void add(std::string_view part);

  uint64_t low64() const { return XXH3_128bits_digest(state_).low64; }
  std::string hex() const;  // 32 digits

 private:
  XXH3_state_t* state_;
};

}  // namespace tessera
