#include "worker/agent/run_directory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/worker/agent/temp_dir.h"
#include "worker/agent/file_util.h"

namespace tessera::agent {
namespace {

v1::RunId run_id(const std::string& job, int attempt) {
  v1::RunId id;
  id.set_job_id(job);
  id.set_attempt(attempt);
  return id;
}

TEST(RunDirectory, ListsWhatWasMade) {
  TempDir state;
  for (int attempt : {1, 2}) {
    const auto run = RunDirectory::of(state.path(), run_id("demo.a-1", attempt));
    ASSERT_TRUE(run.ok());
    ASSERT_TRUE(run->rank(0).create().ok());
    ASSERT_TRUE(run->rank(0).create().ok());  // Again is fine.
  }
  std::filesystem::create_directories(state / "runs/demo.a-1/not-an-attempt");
  const std::vector<RunDirectory> runs = RunDirectory::list(state.path());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1].id().attempt(), 2);
  runs[0].remove();
  EXPECT_EQ(RunDirectory::list(state.path()).size(), 1u);
}

TEST(RunDirectory, RefusesIdsThatLeaveTheStateDirectory) {
  for (const char* job : {"", ".", "..", "a/b", "/etc", ".hidden", "a b", "a\nb"}) {
    EXPECT_FALSE(RunDirectory::of("/state", run_id(job, 1)).ok()) << job;
  }
  EXPECT_FALSE(RunDirectory::of("/state", run_id(std::string(129, 'a'), 1)).ok());
  EXPECT_FALSE(RunDirectory::of("/state", run_id("a", -1)).ok());
}

TEST(FileUtil, AnAtomicWriteReplacesTheWholeFile) {
  TempDir directory;
  ASSERT_TRUE(write_atomically(directory / "file", "a long first version").ok());
  ASSERT_TRUE(write_atomically(directory / "file", "second").ok());
  EXPECT_EQ(*read_file(directory / "file", 100), "second");
  EXPECT_EQ(read_file(directory / "file", 5).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(read_tail(directory / "file", 3), "ond");
  EXPECT_FALSE(write_atomically(directory / "missing/file", "x").ok());
}

TEST(FileUtil, AMessageThatIsNoneIsAnError) {
  TempDir directory;
  ASSERT_TRUE(write_message(directory / "run", run_id("job", 3)).ok());
  v1::RunId id;
  ASSERT_TRUE(read_message(directory / "run", id).ok());
  EXPECT_EQ(id.attempt(), 3);
  ASSERT_TRUE(write_atomically(directory / "run", "\xff\xff").ok());
  EXPECT_EQ(read_message(directory / "run", id).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tessera::agent
