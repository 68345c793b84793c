// What the simulated disk keeps and loses of what SQLite writes to it.
#include "tests/simulator/disk.h"

#include <gtest/gtest.h>

#include <SQLiteCpp/SQLiteCpp.h>

namespace tessera::server::simulator {
namespace {

constexpr char kDatabase[] = "db";
constexpr int kNumSeeds = 200;
constexpr int kCheckpointPages = 8;

int num_rows(SQLite::Database& database) {
  return database.execAndGet("SELECT count(*) FROM rows").getInt();
}

void make_table(const char* synchronous) {
  SQLite::Database database(kDatabase, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  database.exec("PRAGMA journal_mode = WAL");
  database.exec(std::string("PRAGMA synchronous = ") + synchronous);
  database.exec("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)");
}

struct Outcome {
  int num_committed = 0;
  int num_left = 0;
  bool is_whole = false;
};

// Commits two rows at a time until power fails at some operation, and looks what is left.
Outcome lose_power(uint64_t seed, const char* synchronous) {
  World world(seed);
  Disk disk(world, kCheckpointPages);
  make_table(synchronous);
  Outcome outcome;
  {
    SQLite::Database database(kDatabase, SQLite::OPEN_READWRITE);
    database.exec(std::string("PRAGMA synchronous = ") + synchronous);
    const std::string row = "INSERT INTO rows (text) VALUES ('" + std::string(3000, 'x') + "')";
    const auto add_two = [&] {
      SQLite::Transaction transaction(database);
      database.exec(row);
      database.exec(row);
      transaction.commit();
    };
    const int64_t num_commits = world.between(1, 30);
    for (int64_t i = 0; i < num_commits; ++i) add_two();
    outcome.num_committed = 2 * static_cast<int>(num_commits);
    disk.fail_power_after(world.between(0, 60));
    add_two();
    disk.fail_power();
  }
  disk.restart();
  SQLite::Database database(kDatabase, SQLite::OPEN_READWRITE);
  outcome.is_whole = database.execAndGet("PRAGMA integrity_check").getString() == "ok";
  outcome.num_left = num_rows(database);
  return outcome;
}

TEST(Disk, WhatWasSyncedIsKeptAndACommitIsThereInAllOrNothing) {
  int num_kept = 0, num_lost = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    const Outcome outcome = lose_power(seed, "FULL");
    ASSERT_TRUE(outcome.is_whole) << "seed " << seed;
    const int extra = outcome.num_left - outcome.num_committed;
    ASSERT_TRUE(extra == 0 || extra == 2) << "seed " << seed << ": " << extra;
    ++(extra == 0 ? num_lost : num_kept);
  }
  EXPECT_GT(num_kept, kNumSeeds / 10);
  EXPECT_GT(num_lost, kNumSeeds / 10);
}

TEST(Disk, WhatWasNotSyncedIsLostAtTimes) {
  int num_lost = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    const Outcome outcome = lose_power(seed, "NORMAL");
    ASSERT_TRUE(outcome.is_whole) << "seed " << seed;
    num_lost += outcome.num_left < outcome.num_committed;
  }
  EXPECT_GT(num_lost, kNumSeeds / 10);
}

TEST(Disk, AKilledProcessLeavesAllThatItWrote) {
  World world(1);
  Disk disk(world, kCheckpointPages);
  make_table("OFF");
  {
    SQLite::Database database(kDatabase, SQLite::OPEN_READWRITE);
    database.exec("PRAGMA synchronous = OFF");
    database.exec("INSERT INTO rows (text) VALUES ('kept')");
    disk.kill();
    database.exec("INSERT INTO rows (text) VALUES ('too late')");
  }
  disk.restart();
  SQLite::Database database(kDatabase, SQLite::OPEN_READWRITE);
  EXPECT_EQ(num_rows(database), 1);
}

TEST(Disk, WritesAreTornAndReordered) {
  int num_torn = 0, num_reordered = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    World world(seed);
    Disk disk(world, kCheckpointPages);
    {
      const auto file = disk.open("file", /*create=*/true);
      file->write(0, std::string(2048, 'a').data(), 2048);
      file->sync();
      file->write(0, std::string(1024, 'b').data(), 1024);
      file->write(1024, std::string(1024, 'c').data(), 1024);
    }
    disk.fail_power();
    disk.restart();
    const std::string left = disk.open("file", /*create=*/false)->content();
    ASSERT_EQ(left.size(), 2048u);
    ASSERT_EQ(left.find_first_not_of("ab"), left.find('c'));
    const std::string first = left.substr(0, 1024), second = left.substr(1024);
    num_torn += first.find('a') != std::string::npos && first.find('b') != std::string::npos;
    num_reordered += first.find('b') == std::string::npos && second.find('c') != std::string::npos;
  }
  EXPECT_GT(num_torn, 0);
  EXPECT_GT(num_reordered, 0);
}

TEST(Disk, NamesThatWereNotSyncedComeAndGo) {
  int num_gone = 0, num_back = 0;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    World world(seed);
    Disk disk(world, kCheckpointPages);
    disk.open("old", /*create=*/true)->write(0, "x", 1);
    disk.open("old", /*create=*/false)->sync();
    disk.remove("old", /*sync=*/false);
    disk.open("new", /*create=*/true)->write(0, "x", 1);
    disk.fail_power();
    disk.restart();
    num_back += disk.exists("old");
    num_gone += disk.open("new", /*create=*/false) == nullptr;
  }
  EXPECT_GT(num_back, 0);
  EXPECT_LT(num_back, kNumSeeds);
  EXPECT_GT(num_gone, 0);
  EXPECT_LT(num_gone, kNumSeeds);
}

}  // namespace
}  // namespace tessera::server::simulator
