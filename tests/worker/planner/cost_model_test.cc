#include "worker/planner/cost_model.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

DeviceRates rates(const std::string& kind) {
  DeviceRates rates;
  rates.kind = kind;
  rates.flops_float32 = 10;
  rates.flops_bfloat16 = 20;
  rates.memory_bytes_per_second = 5;
  rates.host_bytes_per_second = 1;
  rates.link_bytes_per_second = 2;
  rates.disk_bytes_per_second = 0.5;
  rates.operator_seconds = 0.25;
  return rates;
}

v1::StepCost cost() {
  v1::StepCost cost;
  cost.set_flops(100);
  cost.set_memory_bytes(50);
  cost.set_num_operators(4);
  return cost;
}

TEST(CostModel, AddsComputeAndMemory) {
  EXPECT_DOUBLE_EQ(step_seconds(cost(), rates("cuda"), "float32"), 10 + 10 + 1);
  EXPECT_DOUBLE_EQ(step_seconds(cost(), rates("cuda"), "bfloat16"), 5 + 10 + 1);
}

TEST(CostModel, HidesTransfersBehindComputeOnAGpu) {
  v1::StepCost step = cost();
  step.set_link_bytes(10);
  EXPECT_DOUBLE_EQ(step_seconds(step, rates("cuda"), "float32"), 21);
  // 21 s of compute cover 14.7 of the 20 s and of the 5 s of links.
  step.set_host_bytes(20);
  EXPECT_DOUBLE_EQ(step_seconds(step, rates("cuda"), "float32"), 21 + 25 - 0.7 * 21);
}

TEST(CostModel, CoresThatCopyDoNotCompute) {
  v1::StepCost step = cost();
  step.set_host_bytes(3);
  step.set_disk_bytes(1);
  EXPECT_DOUBLE_EQ(step_seconds(step, rates("cpu"), "float32"), 21 + 3 + 2);
}

TEST(CostModel, HidesNothingBehindWhatTheCpuComputes) {
  v1::StepCost step = cost();
  step.set_cpu_bytes(5);
  EXPECT_DOUBLE_EQ(step_seconds(step, rates("cuda"), "float32"), 21 + 5);
  step.set_host_bytes(20);
  EXPECT_DOUBLE_EQ(step_seconds(step, rates("cuda"), "float32"), 21 + 5 + 20 - 0.7 * 21);
}

TEST(CostModel, KnowsNothingWithoutRates) {
  EXPECT_EQ(step_seconds(cost(), DeviceRates(), "float32"), 0);
}

TEST(DeviceRates, AreFoundByNameAndByTheDriversName) {
  EXPECT_EQ(find_device("h200")->memory_bytes, int64_t{141} << 30);
  EXPECT_EQ(find_device("H100")->name, "h100");
  EXPECT_EQ(find_device("NVIDIA H100 80GB HBM3")->name, "h100");
  EXPECT_EQ(find_device("NVIDIA H100 PCIe")->name, "h100-pcie");
  EXPECT_EQ(find_device("NVIDIA A100-SXM4-40GB")->name, "a100-40gb");
  EXPECT_EQ(find_device("NVIDIA GeForce RTX 4090")->name, "rtx-4090");
  EXPECT_EQ(find_device("NVIDIA A100 80GB PCIe")->name, "a100");
  EXPECT_EQ(find_device("NVIDIA L4")->name, "l4");
  EXPECT_EQ(find_device("NVIDIA L40")->name, "l40");
  EXPECT_EQ(find_device("NVIDIA L40S")->name, "l40s");
  EXPECT_FALSE(find_device("abacus"));
}

TEST(DeviceRates, ModelsThatOnlyLookAlikeAreNotKnown) {
  for (const char* name : {"NVIDIA RTX A1000", "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA L400",
                           "Tesla V100-SXM2-16GB", ""}) {
    EXPECT_FALSE(find_device(name)) << name;
  }
}

}  // namespace
}  // namespace tessera
