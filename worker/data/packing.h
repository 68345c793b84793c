// How documents share rows. Pure: lengths in, plan out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tessera {

enum class PackingStrategy {
  kNone,      // a row is a document, truncated
  kBfd,       // best-fit decreasing, longer documents truncated
  kBfdSplit,  // longer documents cut in pieces first
  kWrapped,   // the stream of tokens cut every max_length tokens
};

// Tokens [begin, begin + length) of a document.
struct Segment {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t length = 0;

  bool operator==(const Segment&) const = default;
};

// Row r is segments [row_offsets[r], row_offsets[r + 1]), one after the other. None is empty.
struct PackingPlan {
  std::vector<Segment> segments;
  std::vector<int64_t> row_offsets{0};

  int64_t num_rows() const { return static_cast<int64_t>(row_offsets.size()) - 1; }
  std::span<const Segment> row(int64_t index) const {
    return std::span(segments).subspan(row_offsets[index],
                                       row_offsets[index + 1] - row_offsets[index]);
  }
};

// Documents packed together: rows never hold documents of two batches. TRL packs inside
// datasets.map, whose batches have this size.
inline constexpr int64_t kPackingBatch = 1000;

// Packs batch after batch, holding on to its buffers. The plan is TRL's, row for row. Empty
// documents are left out.
class Packer {
 public:
  // max_length 0 means no limit, with kNone only.
  Packer(int64_t max_length, PackingStrategy strategy);
  ~Packer();

  // Appends the rows of one batch, at most kPackingBatch documents; number `first` begins it.
  void pack(std::span<const int64_t> lengths, int64_t first, PackingPlan& plan);

 private:
  class BestFit;

  const int64_t max_length_;
  const PackingStrategy strategy_;
  std::unique_ptr<BestFit> best_fit_;
  std::vector<Segment> pieces_;
};

// The plan of any number of documents, a batch at a time.
PackingPlan plan_packing(std::span<const int64_t> lengths, int64_t max_length,
                         PackingStrategy strategy);

}  // namespace tessera
