#include "client/cli/answer.h"

#include <gmock/gmock.h>
#include <google/protobuf/empty.pb.h>
#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

using testing::HasSubstr;
using Stream = google::protobuf::io::ZeroCopyInputStream;

std::string read_all(Stream& stream) {
  std::string text;
  const void* data = nullptr;
  for (int size = 0; stream.Next(&data, &size);) {
    text.append(static_cast<const char*>(data), static_cast<size_t>(size));
  }
  return text;
}

TEST(RunForAnswer, HandsTheOutputOverToItsEnd) {
  std::string text;
  const absl::Status status =
      run_for_answer({.program = "/bin/echo", .arguments = {"all", "of", "it"}},
                     google::protobuf::Empty(), {}, [&](Stream& out) { text = read_all(out); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, "all of it\n");
}

TEST(RunForAnswer, NamesAProgramThatFails) {
  const absl::Status status = run_for_answer({.program = "/bin/false"}, google::protobuf::Empty(),
                                             {}, [](Stream& out) { read_all(out); });
  EXPECT_EQ(status.message(), "false ended with exit code 1");
}

// As where a reply is malformed: the program is blocked on a pipe that nobody empties.
TEST(RunForAnswer, EndsAProgramWhoseOutputIsNotReadToItsEnd) {
  const absl::Status status =
      run_for_answer({.program = "/usr/bin/yes"}, google::protobuf::Empty(), {}, [](Stream& out) {
        const void* data = nullptr;
        int size = 0;
        EXPECT_TRUE(out.Next(&data, &size));
      });
  EXPECT_THAT(status.message(), HasSubstr("yes ended with "));
}

}  // namespace
}  // namespace tessera::cli
