// A mapped file of which only little stays resident.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tessera {

// Pages that were read count as the process's memory though the system could take them back. Here
// they are handed back whenever about kMaxResidentBytes of them were touched. Thread safe.
class PagedMapping {
 public:
  static constexpr int64_t kMaxResidentBytes = int64_t{8} << 20;

  PagedMapping() = default;
  // Maps the whole of `fd`, which may be closed then. Throws std::system_error.
  PagedMapping(int fd, int64_t num_bytes);
  PagedMapping(PagedMapping&& other) noexcept;
  PagedMapping& operator=(PagedMapping&& other) noexcept;
  ~PagedMapping();

  // The bytes at [offset, offset + size), readable at any later time as well.
  const std::byte* at(int64_t offset, int64_t size) const;

 private:
  const std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
  mutable std::atomic<int64_t> last_window_{-1};
  mutable std::atomic<int64_t> num_touched_{0};  // bytes, since the pages were last handed back
};

}  // namespace tessera
