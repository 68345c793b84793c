// Who holds which page of a cache.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// In the place of a page that was given back.
inline constexpr int32_t kNoPage = -1;

// Pages [0, num_pages), each free or held by one sequence or several. No memory of its own: a page
// is a row of the cache's tensors.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  int64_t size() const { return static_cast<int64_t>(holders_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // How many hold it; 0: it is free.
  int32_t num_holders(int32_t page) const { return holders_[page]; }
  // In ascending order.
  std::vector<int32_t> held() const;

  // A page that nobody held. Requires a free one.
  int32_t take();
  // One more holds a page that is held.
  void share(int32_t page);
  // One less; the last one frees it.
  void give_back(int32_t page);

 private:
  std::vector<int32_t> holders_;
  std::vector<int32_t> free_;  // the last is taken first
};

}  // namespace tessera
