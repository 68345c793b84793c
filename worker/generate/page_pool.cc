#include "worker/generate/page_pool.h"

#include <c10/util/Exception.h>

namespace tessera {

PagePool::PagePool(int64_t num_pages) : holders_(num_pages) {
  for (int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

std::vector<int32_t> PagePool::held() const {
  std::vector<int32_t> pages;
  for (int32_t page = 0; page < size(); ++page) {
    if (holders_[page] > 0) pages.push_back(page);
  }
  return pages;
}

int32_t PagePool::take() {
  TORCH_CHECK(!free_.empty(), "no page is free");
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[page] = 1;
  return page;
}

void PagePool::share(int32_t page) {
  TORCH_CHECK(holders_[page] > 0, "page ", page, " is held by nobody");
  ++holders_[page];
}

void PagePool::give_back(int32_t page) {
  TORCH_CHECK(holders_[page] > 0, "page ", page, " is held by nobody");
  if (--holders_[page] == 0) free_.push_back(page);
}

}  // namespace tessera
