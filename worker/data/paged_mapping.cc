#include "worker/data/paged_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

// What the kernel maps at once around a page that is touched.
constexpr int64_t kWindowBytes = int64_t{64} << 10;

}  // namespace

PagedMapping::PagedMapping(int fd, int64_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  void* mapped = ::mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  data_ = static_cast<const std::byte*>(mapped);
}

PagedMapping::PagedMapping(PagedMapping&& other) noexcept { *this = std::move(other); }

PagedMapping& PagedMapping::operator=(PagedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

PagedMapping::~PagedMapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(num_bytes_));
}

const std::byte* PagedMapping::at(int64_t offset, int64_t size) const {
  const int64_t first = offset / kWindowBytes;
  const int64_t last = (offset + size) / kWindowBytes;
  const bool same = last_window_.exchange(last, std::memory_order_relaxed) == first;
  const int64_t touched = (last - first + (same ? 0 : 1)) * kWindowBytes;
  if (touched > 0 &&
      num_touched_.fetch_add(touched, std::memory_order_relaxed) + touched > kMaxResidentBytes) {
    num_touched_.store(0, std::memory_order_relaxed);
    ::madvise(const_cast<std::byte*>(data_), static_cast<size_t>(num_bytes_), MADV_DONTNEED);
  }
  return data_ + offset;
}

}  // namespace tessera
