#include "worker/agent/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/agent/network.h"

namespace tessera::agent {
namespace {

TEST(Devices, CpuSlotsShareTheMemory) {
  const auto devices = offered_devices("none", 4);
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices->size(), 4u);
  EXPECT_EQ((*devices)[3].index(), 3);
  EXPECT_EQ((*devices)[0].kind(), "cpu");
  EXPECT_EQ((*devices)[0].memory_bytes(), (*devices)[3].memory_bytes());
  EXPECT_FALSE((*devices)[0].model().empty());
  EXPECT_TRUE(offered_devices("none", 0)->empty());
}

TEST(Devices, IndicesAreUniqueOverBothKinds) {
  const size_t gpus = cuda_devices().size();
  const auto devices = offered_devices("all", 2);
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices->size(), gpus + 2);
  for (size_t i = 0; i < devices->size(); ++i) {
    EXPECT_EQ((*devices)[i].index(), static_cast<int>(i));
  }
}

TEST(Devices, RefusesGpusThatAreNotThere) {
  for (const char* cuda : {"4096", "-1", "x", "", "0,"}) {
    EXPECT_EQ(offered_devices(cuda, 1).status().code(), absl::StatusCode::kInvalidArgument) << cuda;
  }
}

TEST(Network, FindsTheAddressTowardsACoordinator) {
  EXPECT_EQ(*local_address_towards("unix:/tmp/socket"), "127.0.0.1");
  EXPECT_EQ(*local_address_towards("127.0.0.1:7000"), "127.0.0.1");
  EXPECT_EQ(*local_address_towards("dns:///127.0.0.1:7000"), "127.0.0.1");
  EXPECT_FALSE(local_address_towards("no-port").ok());
  EXPECT_TRUE(is_on_this_machine("unix:/tmp/socket"));
  EXPECT_TRUE(is_on_this_machine("localhost:7000"));
  EXPECT_FALSE(is_on_this_machine("no-port"));
}

TEST(Network, ListensOnAPortOfItsOwn) {
  const auto first = listen_on("127.0.0.1");
  const auto second = listen_on("127.0.0.1");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(second.ok());
  EXPECT_GT(first->port, 0);
  EXPECT_NE(first->port, second->port);
  EXPECT_FALSE(listen_on("192.0.2.1").ok());  // an address of no machine
}

}  // namespace
}  // namespace tessera::agent
