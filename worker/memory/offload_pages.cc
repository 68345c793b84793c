#include "worker/memory/offload_pages.h"

#include <algorithm>

#include "worker/memory/host_memory.h"

namespace tessera {
namespace {

class HostPages final : public OffloadPages {
 public:
  HostPages(at::Device device, SideStream& stream) : device_(device), stream_(stream) {}

  void grow() override {
    const OwnerScope scope(Owner::kActivations);
    pages_.push_back(empty_host({kOffloadPageBytes}, at::kByte, device_));
  }
  void write(int64_t page, int64_t offset, const at::Tensor& part) override {
    stream_.run([&] { copy_across(place(page, offset, part), part); });
  }
  void read(const at::Tensor& part, int64_t page, int64_t offset) override {
    stream_.run([&] { copy_across(part, place(page, offset, part)); });
  }
  void will_read(int64_t, int64_t, int64_t) override {}

 private:
  at::Tensor place(int64_t page, int64_t offset, const at::Tensor& part) const {
    return pages_[static_cast<size_t>(page)].narrow(0, offset, part.numel());
  }

  at::Device device_;
  SideStream& stream_;
  std::vector<at::Tensor> pages_;
};

}  // namespace

std::unique_ptr<OffloadPages> make_host_pages(at::Device device, SideStream& stream) {
  return std::make_unique<HostPages>(device, stream);
}

void OffloadSpace::open_page() {
  if (free_pages_.empty()) {
    pages_->grow();
    free_pages_.push_back(num_pages());
    bytes_on_page_.push_back(0);
  }
  open_ = free_pages_.back();
  free_pages_.pop_back();
  filled_ = 0;
}

std::vector<OffloadExtent> OffloadSpace::take(int64_t bytes) {
  std::vector<OffloadExtent> extents;
  while (bytes > 0) {
    if (filled_ == kOffloadPageBytes) open_page();
    const int64_t part = std::min(bytes, kOffloadPageBytes - filled_);
    extents.push_back({open_, filled_, part});
    bytes_on_page_[static_cast<size_t>(open_)] += part;
    filled_ += part;
    bytes -= part;
  }
  return extents;
}

void OffloadSpace::give_back(const std::vector<OffloadExtent>& extents) {
  for (const OffloadExtent& extent : extents) {
    int64_t& in_use = bytes_on_page_[static_cast<size_t>(extent.page)];
    in_use -= extent.bytes;
    if (in_use > 0) continue;
    if (extent.page == open_) {
      filled_ = 0;
    } else {
      free_pages_.push_back(extent.page);
    }
  }
}

void OffloadSpace::write(const std::vector<OffloadExtent>& extents, const at::Tensor& bytes) {
  int64_t begin = 0;
  for (const OffloadExtent& extent : extents) {
    pages_->write(extent.page, extent.offset, bytes.narrow(0, begin, extent.bytes));
    begin += extent.bytes;
  }
}

void OffloadSpace::read(const at::Tensor& bytes, const std::vector<OffloadExtent>& extents) {
  int64_t begin = 0;
  for (const OffloadExtent& extent : extents) {
    pages_->read(bytes.narrow(0, begin, extent.bytes), extent.page, extent.offset);
    begin += extent.bytes;
  }
}

void OffloadSpace::will_read(const std::vector<OffloadExtent>& extents) {
  for (const OffloadExtent& extent : extents) {
    pages_->will_read(extent.page, extent.offset, extent.bytes);
  }
}

}  // namespace tessera
