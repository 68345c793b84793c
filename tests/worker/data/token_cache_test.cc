#include "worker/data/token_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "tests/worker/data/data_fixture.h"
#include "worker/data/host_lock.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Cache : public testing::Test {
 protected:
  std::filesystem::path directory() const { return folder_.path() / "cache"; }
  TokenCache open(int64_t max_bytes = 0) {
    return TokenCache({directory(), max_bytes},
                      {.note = [this](const std::string& line) { notes_.push_back(line); }});
  }

  // The entry's tokens, made as `tokens` where there is none.
  std::vector<int32_t> get(TokenCache cache, const std::string& key, std::vector<int32_t> tokens) {
    const auto store = cache.get(key, [&](TokenStoreWriter& writer) {
      ++num_made_;
      writer.append(tokens, {});
    });
    std::vector<int32_t> found;
    store->append_tokens(0, 0, store->length(0), found);
    return found;
  }

  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& item : std::filesystem::directory_iterator(directory() / "tokens")) {
      names.push_back(item.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void set_age(const std::string& key, std::chrono::hours age) const {
    std::filesystem::last_write_time(directory() / "tokens" / key,
                                     std::filesystem::file_time_type::clock::now() - age);
  }

  TemporaryFolder folder_;
  std::vector<std::string> notes_;
  int num_made_ = 0;
};

TEST_F(Cache, MakesAnEntryOnce) {
  EXPECT_THAT(get(open(), "a", {1, 2, 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(get(open(), "a", {9}), ElementsAre(1, 2, 3));
  EXPECT_THAT(get(open(), "b", {9}), ElementsAre(9));
  EXPECT_EQ(num_made_, 2);
  EXPECT_THAT(entries(), ElementsAre("a", "b"));
}

TEST_F(Cache, MakesADamagedEntryAgain) {
  get(open(), "a", {1, 2, 3});
  std::ofstream(directory() / "tokens/a/tokens", std::ios::binary) << "123456789012";
  EXPECT_THAT(get(open(), "a", {4, 5}), ElementsAre(4, 5));
  EXPECT_THAT(notes_,
              testing::Contains(HasSubstr("is made again: its file \"tokens\" is damaged")));
  EXPECT_THAT(get(open(), "a", {9}), ElementsAre(4, 5));
}

TEST_F(Cache, LeavesNothingOfAnErrorBehind) {
  TokenCache cache = open();
  EXPECT_THROW(cache.get("a",
                         [](TokenStoreWriter& writer) {
                           writer.append(std::vector<int32_t>{1}, {});
                           throw UserError("data.train", "line 2");
                         }),
               UserError);
  EXPECT_THAT(entries(), ElementsAre());
  EXPECT_THAT(get(open(), "a", {1, 2}), ElementsAre(1, 2));
}

// A child that is killed by SIGKILL while it makes the entry, with tokens written already.
TEST_F(Cache, SurvivesTheDeathOfAMaker) {
  TokenCache cache = open();
  int begun[2];
  ASSERT_EQ(::pipe(begun), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    cache.get("a", [&](TokenStoreWriter& writer) {
      writer.append(std::vector<int32_t>(1 << 20, 7), {});
      [[maybe_unused]] const auto written = ::write(begun[1], "x", 1);
      for (;;) ::pause();
    });
    ::_exit(0);
  }
  char byte;
  ASSERT_EQ(::read(begun[0], &byte, 1), 1);
  EXPECT_THAT(entries(), ElementsAre("a.part"));
  EXPECT_FALSE(HostLock::try_now(directory() / "locks/a")) << "the maker holds it";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(get(open(), "a", {1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(entries(), ElementsAre("a"));
  ::close(begun[0]);
  ::close(begun[1]);
}

TEST_F(Cache, OneOfManyProcessesMakesTheEntry) {
  constexpr int kProcesses = 4;
  TokenCache cache = open();
  int made[2], go[2];
  ASSERT_EQ(::pipe(made), 0);
  ASSERT_EQ(::pipe(go), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    ::close(go[1]);
    char byte;
    [[maybe_unused]] auto count = ::read(go[0], &byte, 1);  // until the parent closes it
    const auto store = cache.get("a", [&](TokenStoreWriter& writer) {
      count = ::write(made[1], "x", 1);
      for (int document = 0; document < 20000; ++document) {
        writer.append(std::vector<int32_t>(50, document), {});
      }
    });
    ::_exit(store->size() == 20000 && store->length(19999) == 50 ? 0 : 1);
  }
  ::close(go[0]);
  ::close(go[1]);
  ::close(made[1]);
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  char bytes[kProcesses];
  EXPECT_EQ(::read(made[0], bytes, sizeof bytes), 1) << "the number of makers";
  ::close(made[0]);
}

TEST_F(Cache, DropsTheLeastRecentlyUsed) {
  const std::vector<int32_t> large(25'000, 1);  // 100 kB
  for (const char* key : {"a", "b", "c"}) get(open(), key, large);
  set_age("a", std::chrono::hours(3));
  set_age("b", std::chrono::hours(2));
  set_age("c", std::chrono::hours(1));
  get(open(), "a", large);  // used again
  get(open(350'000), "d", large);
  EXPECT_THAT(entries(), ElementsAre("a", "c", "d"));
  get(open(50'000), "e", large);
  EXPECT_THAT(entries(), ElementsAre("e")) << "the newest stays whatever its size";
}

TEST_F(Cache, DropsWhatADeadMakerLeft) {
  open();
  std::filesystem::create_directory(directory() / "tokens/dead.part");
  std::filesystem::create_directory(directory() / "tokens/alive.part");
  const auto lock = HostLock::try_now(directory() / "locks/alive");
  ASSERT_TRUE(lock);
  get(open(), "a", {1});
  // flock is per open file, so a lock of this process counts as another's.
  EXPECT_THAT(entries(), ElementsAre("a", "alive.part"));
}

TEST_F(Cache, HashesContents) {
  const RecordFile file{folder_.write("a", "one"), "data.train"};
  const RecordFile same{folder_.write("b", "one"), "data.train"};
  TokenCache cache = open();
  const std::string hash = cache.content_hash(file);
  EXPECT_EQ(cache.content_hash(file), hash);
  EXPECT_EQ(cache.content_hash(same), hash);
  folder_.write("a", "two");
  EXPECT_NE(cache.content_hash(file), hash);
  folder_.write("a", "one");
  EXPECT_EQ(cache.content_hash(file), hash);
}

TEST_F(Cache, TrustsANoteOnlyOfTheSameFile) {
  const RecordFile file{folder_.write("a", "one"), "data.train"};
  const auto time = [&](int seconds) {
    const timespec times[2] = {{.tv_sec = seconds, .tv_nsec = 0},
                               {.tv_sec = seconds, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.path.c_str(), times, 0), 0);
  };
  time(1000);
  TokenCache cache = open();
  const std::string hash = cache.content_hash(file);
  folder_.write("a", "two");
  time(1000);  // of the same size and time as before
  EXPECT_NE(cache.content_hash(file), hash);
}

TEST_F(Cache, ADatasetComesFromIt) {
  auto options = dataset_of({folder_.write("a.jsonl", text_lines({"one", "two"}))});
  options.cache.directory = directory();
  options.reports.note = [this](const std::string& line) { notes_.push_back(line); };
  const auto rows = decoded_rows(*load_dataset(options));
  EXPECT_THAT(rows, ElementsAre("one<|im_end|>", "two<|im_end|>"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("tokenised 2 documents")));

  notes_.clear();
  options.max_length = 2;  // no matter of the cache's
  options.packing = PackingStrategy::kBfd;
  EXPECT_EQ(load_dataset(options)->num_tokens(0), 2);
  options.sources[0].paths = {folder_.write("copy.jsonl", text_lines({"one", "two"}))};
  load_dataset(options);
  EXPECT_THAT(notes_, ElementsAre());

  options.vocab_size = 1000;
  load_dataset(options);
  options.examples.eos_token = "<|endoftext|>";
  load_dataset(options);
  folder_.write("copy.jsonl", text_lines({"one", "three"}));
  load_dataset(options);
  EXPECT_EQ(notes_.size(), 3);
}

TEST_F(Cache, AnErrorOfTheDataComesThrough) {
  auto options = dataset_of({folder_.write("a.jsonl", text_lines({"one"}) + "{}\n")});
  options.cache.directory = directory();
  EXPECT_THROW(load_dataset(options), UserError);
  EXPECT_THAT(entries(), ElementsAre());
}

TEST_F(Cache, SaysThatItCannotBeWritten) {
  folder_.write("cache", "a file");
  try {
    open();
    FAIL() << "was accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "data.cache_dir");
    EXPECT_THAT(error.what(), HasSubstr("cannot be written"));
  }
}

}  // namespace
}  // namespace tessera
