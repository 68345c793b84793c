#include "worker/data/data_files.h"

#include <gmock/gmock.h>

#include "tests/worker/data/fixtures.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DataFiles : public testing::Test {
 protected:
  DataFiles() {
    for (const char* directory : {"sub", "sub/deep", ".hidden"}) {
      std::filesystem::create_directory(folder_.path() / directory);
    }
    for (const char* name : {"b.jsonl", "a.parquet", "notes.txt", ".c.jsonl", "sub/x.json",
                             "sub/deep/y.jsonl", ".hidden/z.jsonl", "part-1.jsonl"}) {
      folder_.write(name, "{}");
    }
  }

  // Relative to the folder.
  std::vector<std::string> find(const std::vector<std::filesystem::path>& paths) const {
    std::vector<std::filesystem::path> whole;
    for (const auto& path : paths) whole.push_back(folder_.path() / path);
    std::vector<std::string> found;
    for (const RecordFile& file : find_data_files(whole, "data.train")) {
      found.push_back(file.path.lexically_relative(folder_.path()).string());
    }
    return found;
  }

  std::string error_of(const std::filesystem::path& path) const {
    try {
      find({path});
    } catch (const UserError& error) {
      EXPECT_EQ(error.field(), "data.train");
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
};

TEST_F(DataFiles, AFileIsItself) {
  EXPECT_THAT(find({"notes.txt", "b.jsonl", "b.jsonl"}),
              ElementsAre("notes.txt", "b.jsonl", "b.jsonl"));
}

TEST_F(DataFiles, ADirectoryIsItsDataFilesInOrder) {
  EXPECT_THAT(find({""}), ElementsAre("a.parquet", "b.jsonl", "part-1.jsonl", "sub/deep/y.jsonl",
                                      "sub/x.json"));
}

TEST_F(DataFiles, APatternIsWhatItMatches) {
  EXPECT_THAT(find({"*.jsonl"}), ElementsAre("b.jsonl", "part-1.jsonl"));
  EXPECT_THAT(find({"part-[0-9].jsonl", "?.parquet"}), ElementsAre("part-1.jsonl", "a.parquet"));
  EXPECT_THAT(find({"**/*.jsonl"}), ElementsAre("b.jsonl", "part-1.jsonl", "sub/deep/y.jsonl"));
  EXPECT_THAT(find({"s*/**/y.jsonl"}), ElementsAre("sub/deep/y.jsonl"));
  EXPECT_THAT(find({"*"}), ElementsAre("a.parquet", "b.jsonl", "notes.txt", "part-1.jsonl"));
}

TEST_F(DataFiles, AFileMayHaveTheNameOfAPattern) {
  folder_.write("odd[1].jsonl", "{}");
  EXPECT_THAT(find({"odd[1].jsonl"}), ElementsAre("odd[1].jsonl"));
}

TEST_F(DataFiles, NothingFoundIsAnError) {
  EXPECT_THAT(error_of("*.csv"), HasSubstr("*.csv: no file matches the pattern"));
  EXPECT_THAT(error_of("sub/none/*.jsonl"), HasSubstr("no file matches the pattern"));
  std::filesystem::create_directory(folder_.path() / "empty");
  EXPECT_THAT(error_of("empty"), HasSubstr("there are no .jsonl, .json or .parquet files in it"));
}

}  // namespace
}  // namespace tessera
