// Where offloaded bytes lie: pages of one size, in host memory or in a file. Tensors are laid one
// behind the other, across the ends of pages, so that nothing is lost between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "worker/memory/side_stream.h"

namespace tessera {

inline constexpr int64_t kOffloadPageBytes = int64_t{8} << 20;

// What holds the pages, numbered from 0. `offset` and the length of a part stay within a page;
// `part` is a contiguous uint8 tensor on the device of the job. A read comes after all writes.
class OffloadPages {
 public:
  virtual ~OffloadPages() = default;
  // Adds the next page. Throws UserError (a full disk), MemoryError.
  virtual void grow() = 0;
  virtual void write(int64_t page, int64_t offset, const at::Tensor& part) = 0;
  virtual void read(const at::Tensor& part, int64_t page, int64_t offset) = 0;
  // These bytes are soon read.
  virtual void will_read(int64_t page, int64_t offset, int64_t bytes) = 0;
};

// In host memory, charged to the host space; copies run on `stream`, which must outlive it.
std::unique_ptr<OffloadPages> make_host_pages(at::Device device, SideStream& stream);
// In a file of `directory`, which is made where it is missing; the file has no name, and goes with
// this process. Reads and writes are done when they return. On meta there is no file. Throws
// UserError("memory.activation_offloading_dir").
std::unique_ptr<OffloadPages> make_disk_pages(at::Device device,
                                              const std::filesystem::path& directory);

// Bytes of a page that are in use.
struct OffloadExtent {
  int64_t page, offset, bytes;
};

// Hands pages out and takes them back: a page is free again when all that lay on it is. Grows when
// there is no free page, and never shrinks: what one step needs the next one will.
class OffloadSpace {
 public:
  explicit OffloadSpace(std::unique_ptr<OffloadPages> pages) : pages_(std::move(pages)) {}

  std::vector<OffloadExtent> take(int64_t bytes);
  void give_back(const std::vector<OffloadExtent>& extents);

  // All bytes of a contiguous uint8 tensor of the length that was taken.
  void write(const std::vector<OffloadExtent>& extents, const at::Tensor& bytes);
  void read(const at::Tensor& bytes, const std::vector<OffloadExtent>& extents);
  void will_read(const std::vector<OffloadExtent>& extents);

  int64_t num_pages() const { return static_cast<int64_t>(bytes_on_page_.size()); }

 private:
  void open_page();

  std::unique_ptr<OffloadPages> pages_;
  std::vector<int64_t> bytes_on_page_;
  std::vector<int64_t> free_pages_;
  int64_t open_ = -1;  // the page that is being filled
  int64_t filled_ = kOffloadPageBytes;
};

}  // namespace tessera
