#include "worker/parallel/flat_layout.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera {
namespace {

TEST(FlatLayout, AlignsEntriesAndPadsToTheWorld) {
  const FlatLayout layout = make_flat_layout("unit", {{"a", {3}}, {"b", {32, 9}}, {"c", {}}}, 3);
  ASSERT_EQ(layout.entries.size(), 3u);
  EXPECT_EQ(layout.entries[0].offset, 0);
  EXPECT_EQ(layout.entries[1].offset, 256);
  EXPECT_EQ(layout.entries[1].numel, 288);
  EXPECT_EQ(layout.entries[2].offset, 768);
  EXPECT_EQ(layout.entries[2].numel, 1);
  EXPECT_EQ(layout.used_numel, 769);
  EXPECT_EQ(layout.numel, 1536);
  EXPECT_EQ(layout.shard_numel, 512);
}

TEST(FlatLayout, SlicesSayWhereAnEntryLies) {
  const FlatLayout layout = make_flat_layout("unit", {{"a", {200}}, {"b", {130}}}, 2);
  ASSERT_EQ(layout.shard_numel, 256);
  const auto second = layout.slices_of_rank(1);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].entry->name, "b");
  EXPECT_EQ(second[0].entry_begin, 0);
  EXPECT_EQ(second[0].shard_begin, 0);
  EXPECT_EQ(second[0].numel, 130);
}

TEST(FlatLayout, EveryElementIsInExactlyOneShard) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> parameters = {
      {"norm", {7}}, {"q", {13, 11}}, {"empty", {0, 4}}, {"scalar", {}}, {"down", {5, 3, 17}}};
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const FlatLayout layout = make_flat_layout("unit", parameters, world_size);
    EXPECT_EQ(layout.numel, layout.shard_numel * world_size);
    EXPECT_EQ(layout.shard_numel % FlatLayout::kAlignment, 0);
    std::map<std::string, std::vector<int>> seen;
    for (const FlatEntry& entry : layout.entries) seen[entry.name].assign(entry.numel, 0);
    for (int rank = 0; rank < world_size; ++rank) {
      for (const auto& slice : layout.slices_of_rank(rank)) {
        ASSERT_EQ(slice.entry->offset + slice.entry_begin,
                  rank * layout.shard_numel + slice.shard_begin);
        ASSERT_LE(slice.shard_begin + slice.numel, layout.shard_numel);
        for (int64_t i = 0; i < slice.numel; ++i)
          ++seen[slice.entry->name].at(slice.entry_begin + i);
      }
    }
    for (const auto& [name, counts] : seen) {
      for (int count : counts) ASSERT_EQ(count, 1) << name << " at world size " << world_size;
    }
  }
}

TEST(FlatLayout, UsedPartDoesNotDependOnTheWorld) {
  const auto one = make_flat_layout("unit", {{"a", {100}}, {"b", {77}}}, 1);
  const auto five = make_flat_layout("unit", {{"a", {100}}, {"b", {77}}}, 5);
  EXPECT_EQ(one.used_numel, five.used_numel);
  EXPECT_EQ(one.entries[1].offset, five.entries[1].offset);
}

}  // namespace
}  // namespace tessera
