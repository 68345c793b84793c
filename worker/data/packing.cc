#include "worker/data/packing.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace tessera {
namespace {

// Rows that have room left, by how much. The room of a row is at most max_length, so a bitmap of
// the rooms in use finds the least one that is enough in a few words, level by level.
class RoomIndex {
 public:
  explicit RoomIndex(int64_t max_room) {
    for (int64_t bits = max_room + 1;;) {
      bits = (bits + 63) / 64;
      levels_.emplace_back(bits, 0);
      if (bits == 1) break;
    }
  }

  void add(int64_t room) {
    for (auto& level : levels_) {
      level[room / 64] |= uint64_t{1} << room % 64;
      room /= 64;
    }
  }

  void remove(int64_t room) {
    for (auto& level : levels_) {
      level[room / 64] &= ~(uint64_t{1} << room % 64);
      if (level[room / 64] != 0) return;
      room /= 64;
    }
  }

  // The least room in use that is `room` or more. Requires that there is one.
  int64_t at_least(int64_t room) const {
    size_t depth = 0;
    for (;; ++depth) {
      const auto& level = levels_[depth];
      const int64_t word = room / 64;
      const uint64_t rest =
          word < static_cast<int64_t>(level.size()) ? level[word] >> room % 64 : 0;
      if (rest != 0) {
        room += std::countr_zero(rest);
        break;
      }
      room = word + 1;
    }
    while (depth-- > 0) room = room * 64 + std::countr_zero(levels_[depth][room]);
    return room;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // of bits; a bit says whether a word below has any
};

void wrap(std::span<const int64_t> lengths, int64_t first, int64_t max_length, PackingPlan& plan) {
  int64_t room = max_length;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t begin = 0; begin < lengths[i];) {
      const int64_t length = std::min(room, lengths[i] - begin);
      plan.segments.push_back({first + static_cast<int64_t>(i), begin, length});
      begin += length;
      room -= length;
      if (room == 0) {
        plan.row_offsets.push_back(static_cast<int64_t>(plan.segments.size()));
        room = max_length;
      }
    }
  }
  if (room < max_length) plan.row_offsets.push_back(static_cast<int64_t>(plan.segments.size()));
}

void one_document_a_row(std::span<const int64_t> lengths, int64_t first, int64_t max_length,
                        PackingPlan& plan) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = max_length > 0 ? std::min(lengths[i], max_length) : lengths[i];
    if (length == 0) continue;
    plan.segments.push_back({first + static_cast<int64_t>(i), 0, length});
    plan.row_offsets.push_back(static_cast<int64_t>(plan.segments.size()));
  }
}

}  // namespace

// Puts each segment, longest first, into the row with the least room that is enough; among rows of
// equal room, the one that came to it first.
class Packer::BestFit {
 public:
  explicit BestFit(int64_t max_length)
      : max_length_(max_length), rooms_(max_length), queues_(max_length + 1) {}

  void pack(std::vector<Segment>& pieces, PackingPlan& plan) {
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Segment& a, const Segment& b) { return a.length > b.length; });
    rows_.clear();
    next_.assign(pieces.size(), kNone);
    rooms_.add(max_length_);  // a new row can always be had
    for (size_t i = 0; i < pieces.size(); ++i) place(static_cast<int32_t>(i), pieces[i].length);
    for (const Row& row : rows_) {
      for (int32_t i = row.first; i != kNone; i = next_[i]) plan.segments.push_back(pieces[i]);
      plan.row_offsets.push_back(static_cast<int64_t>(plan.segments.size()));
    }
    for (const Row& row : rows_) {
      rooms_.remove(row.room);
      queues_[row.room] = {};
    }
  }

 private:
  static constexpr int32_t kNone = -1;

  struct Row {
    int32_t first;  // piece; the others follow in next_
    int32_t last;
    int64_t room;
    int32_t next_in_queue = kNone;
  };
  struct Queue {
    int32_t front = kNone;
    int32_t back = kNone;
  };

  void place(int32_t piece, int64_t length) {
    const int64_t room = rooms_.at_least(length);
    int32_t row;
    if (room < max_length_) {
      row = pop(room);
      next_[rows_[row].last] = piece;
      rows_[row].last = piece;
    } else {
      row = static_cast<int32_t>(rows_.size());
      rows_.push_back({piece, piece, room});
    }
    rows_[row].room = room - length;
    push(row, room - length);
  }

  int32_t pop(int64_t room) {
    Queue& queue = queues_[room];
    const int32_t row = queue.front;
    queue.front = rows_[row].next_in_queue;
    if (queue.front == kNone) {
      queue.back = kNone;
      rooms_.remove(room);
    }
    return row;
  }

  void push(int32_t row, int64_t room) {
    rows_[row].next_in_queue = kNone;
    if (room == 0) return;
    Queue& queue = queues_[room];
    if (queue.back == kNone) {
      queue.front = row;
      rooms_.add(room);
    } else {
      rows_[queue.back].next_in_queue = row;
    }
    queue.back = row;
  }

  const int64_t max_length_;
  RoomIndex rooms_;
  std::vector<Queue> queues_;  // by room
  std::vector<Row> rows_;
  std::vector<int32_t> next_;  // of a piece, in its row
};

Packer::Packer(int64_t max_length, PackingStrategy strategy)
    : max_length_(max_length), strategy_(strategy) {
  if (strategy == PackingStrategy::kNone) return;
  if (max_length <= 0) throw std::invalid_argument("packing needs a max_length above 0");
  if (strategy != PackingStrategy::kWrapped) best_fit_ = std::make_unique<BestFit>(max_length);
}

Packer::~Packer() = default;

void Packer::pack(std::span<const int64_t> lengths, int64_t first, PackingPlan& plan) {
  if (strategy_ == PackingStrategy::kNone) {
    return one_document_a_row(lengths, first, max_length_, plan);
  }
  if (strategy_ == PackingStrategy::kWrapped) return wrap(lengths, first, max_length_, plan);
  const bool split = strategy_ == PackingStrategy::kBfdSplit;
  pieces_.clear();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t end = split ? lengths[i] : std::min(lengths[i], max_length_);
    for (int64_t begin = 0; begin < end; begin += max_length_) {
      pieces_.push_back(
          {first + static_cast<int64_t>(i), begin, std::min(max_length_, end - begin)});
    }
  }
  best_fit_->pack(pieces_, plan);
}

PackingPlan plan_packing(std::span<const int64_t> lengths, int64_t max_length,
                         PackingStrategy strategy) {
  Packer packer(max_length, strategy);
  PackingPlan plan;
  for (size_t first = 0; first < lengths.size(); first += kPackingBatch) {
    packer.pack(lengths.subspan(first, std::min<size_t>(kPackingBatch, lengths.size() - first)),
                static_cast<int64_t>(first), plan);
  }
  return plan;
}

}  // namespace tessera
