#include "proto/spec/bytes.h"

#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

TEST(FormatBytesTest, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536 * 1024), "1.5 MiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 30) - 1), "1.0 GiB") << "not 1024.0 MiB";
}

TEST(ParseBytesTest, KnowsUnitsOfBothKinds) {
  EXPECT_EQ(parse_bytes("1048576"), 1 << 20);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("512MiB"), 512 << 20);
  EXPECT_EQ(parse_bytes("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(parse_bytes(" 80 gib "), int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("64GB"), int64_t{64'000'000'000});
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_bytes("0.3KB"), 300);
  EXPECT_EQ(parse_bytes("1024TiB"), int64_t{1} << 50);
}

TEST(ParseBytesTest, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", " ", "GiB", "0", "0GiB", "-1GiB", "+1GiB", "1e9", "1.2.3GiB", "12 apples", "1GiBs",
        "1 G", "1025TiB", "inf", "nan", "0x10", "1,5GiB", "."}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(ParseDeviceMemoryTest, TakesNoNumberWhoseUnitWasForgotten) {
  EXPECT_EQ(parse_device_memory("1MiB"), 1 << 20);
  EXPECT_EQ(parse_device_memory("85899345920"), int64_t{80} << 30);
  for (const char* text : {"80", "80B", "1023KiB", "1048575", "", "1 G"}) {
    EXPECT_EQ(parse_device_memory(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tessera::spec
