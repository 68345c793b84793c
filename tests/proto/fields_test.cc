#include "proto/spec/fields.h"

#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

TEST(Fields, AreSetAsAJobFileWritesThem) {
  v1::JobSpec spec;
  EXPECT_FALSE(has_field(spec, "memory.sharding"));
  for (const auto& [path, text] : {std::pair("memory.sharding", "zero2"),
                                   {"memory.gradient_checkpointing", "false"},
                                   {"training.per_device_train_batch_size", "4"},
                                   {"data.cache_max_bytes", "12345678901"},
                                   {"memory.auto_margin", "0.25"},
                                   {"name", "n"}}) {
    EXPECT_TRUE(set_field(spec, path, text)) << path;
    EXPECT_TRUE(has_field(spec, path)) << path;
    EXPECT_EQ(get_field(spec, path), text) << path;
  }
  EXPECT_EQ(spec.memory().sharding(), "zero2");
  EXPECT_EQ(spec.training().per_device_train_batch_size(), 4);
}

TEST(Fields, WhatIsNoneChangesNothing) {
  v1::JobSpec spec;
  for (const auto& [path, text] : {std::pair("memory.nothing", "1"),
                                   {"memory", "1"},
                                   {"", "1"},
                                   {"name.more", "1"},
                                   {"data.train", "1"},
                                   {"training.per_device_train_batch_size", "four"},
                                   {"memory.gradient_checkpointing", "yes"},
                                   {"training.learning_rate", "fast"}}) {
    EXPECT_FALSE(set_field(spec, path, text)) << path;
    EXPECT_EQ(get_field(spec, path), "") << path;
  }
  EXPECT_EQ(spec.ByteSizeLong(), 0U) << "no section is left behind";
}

}  // namespace
}  // namespace tessera::spec
