#include "worker/model/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string with_length(const std::string& header, uint64_t length, const std::string& data = "") {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return with_length(header, header.size(), data);
}

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string name = (fs::temp_directory_path() / "tessera-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
    directory_ = root_ / "model";
    fs::create_directory(directory_);
  }
  ~SafetensorsTest() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
  }

  // The message with which the directory is refused.
  std::string refusal() const {
    try {
      WeightFiles::open(directory_);
    } catch (const UserError& error) {
      EXPECT_EQ(error.field(), "model.path");
      return error.what();
    }
    return "accepted";
  }

  std::string refusal_of(const std::string& bytes) {
    write("model.safetensors", bytes);
    return refusal();
  }

  fs::path root_;
  fs::path directory_;
};

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes;
  for (T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

constexpr char kTwo[] = R"({"__metadata__": {"format": "pt"},
  "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
  "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})";
const std::string kTwoData =
    bytes_of<float>({1, 2, 3, 4, 5, 0.1f}) + bytes_of<uint16_t>({0x3f80, 0xc000});

TEST_F(SafetensorsTest, ReadsSlicesAndConverts) {
  write("model.safetensors", file_of(kTwo, kTwoData));
  const WeightFiles files = WeightFiles::open(directory_);
  ASSERT_EQ(files.tensors().size(), 2u);
  EXPECT_EQ(files.tensors().at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(files.tensors().at("a").numel, 6);
  EXPECT_EQ(files.tensors().at("b").dtype, at::kBFloat16);

  at::Tensor slice = at::empty({2, 2});
  files.read("a", 1, slice);
  EXPECT_TRUE(at::equal(slice.flatten(), at::arange(2, 6, at::kFloat)));

  at::Tensor wide = at::empty({2}, at::kDouble);
  files.read("b", 0, wide);
  EXPECT_EQ(wide[0].item<double>(), 1.0);
  EXPECT_EQ(wide[1].item<double>(), -2.0);

  at::Tensor narrow = at::empty({1}, at::kBFloat16);
  files.read("a", 5, narrow);
  EXPECT_EQ(narrow.item<float>(), static_cast<float>(at::BFloat16(0.1f)));

  EXPECT_THROW(files.read("a", 5, at::empty({2})), c10::Error);
  EXPECT_THROW(files.read("c", 0, at::empty({1})), c10::Error);
}

TEST_F(SafetensorsTest, ConvertsMoreThanItsBufferHolds) {
  constexpr int64_t kNumel = 1'500'000;
  std::string data(kNumel * 4, '\0');
  for (int64_t i = 0; i < kNumel; ++i) {
    const auto value = static_cast<float>(i % 251);
    std::memcpy(data.data() + 4 * i, &value, 4);
  }
  // A header of odd length: nothing is aligned.
  write("model.safetensors",
        file_of(R"({"w": {"dtype": "F32", "shape": [1500000], "data_offsets": [0, 6000000]}}     )",
                data));
  const WeightFiles files = WeightFiles::open(directory_);
  at::Tensor out = at::empty({kNumel - 3}, at::kBFloat16);
  files.read("w", 3, out);
  EXPECT_TRUE(at::equal(out, at::arange(3, kNumel, at::kLong).remainder(251).to(at::kBFloat16)));
}

TEST_F(SafetensorsTest, ReadsWhatItLaysOut) {
  const auto layout = lay_out_safetensors(
      {{"x", {at::kFloat, {3}, 3}}, {"empty", {at::kHalf, {0, 4}, 0}}, {"y", {at::kLong, {}, 1}}});
  EXPECT_EQ(layout.prefix.size() % 8, 0u);
  ASSERT_EQ(layout.offsets.size(), 3u);
  EXPECT_EQ(layout.offsets[0], static_cast<int64_t>(layout.prefix.size()));
  write("model.safetensors", layout.prefix + bytes_of<float>({7, 8, 9}) + bytes_of<int64_t>({-5}));
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(directory_ / "model.safetensors")),
            layout.file_bytes);
  const WeightFiles files = WeightFiles::open(directory_);
  at::Tensor y = at::empty({}, at::kLong);
  files.read("y", 0, y);
  EXPECT_EQ(y.item<int64_t>(), -5);
  EXPECT_EQ(files.tensors().at("empty").numel, 0);
}

TEST_F(SafetensorsTest, AFileThatShrinksIsAnErrorAndNotASignal) {
  write("model.safetensors", file_of(kTwo, kTwoData));
  const WeightFiles files = WeightFiles::open(directory_);
  fs::resize_file(directory_ / "model.safetensors", 20);
  EXPECT_THROW(files.read("a", 0, at::empty({6})), UserError);
}

TEST_F(SafetensorsTest, TruncationIsSeenWhereverItFalls) {
  const std::string whole = file_of(kTwo, kTwoData);
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_THAT(refusal_of(whole.substr(0, size)), HasSubstr("model.safetensors: it is truncated"))
        << size;
  }
  EXPECT_EQ(refusal_of(whole), "accepted");
}

TEST_F(SafetensorsTest, NoByteFlippedInTheHeaderIsAnythingButAnErrorOrAFile) {
  const std::string whole = file_of(kTwo, kTwoData);
  int refused = 0;
  for (size_t i = 0; i < whole.size() - kTwoData.size(); ++i) {
    for (char flip : {'\x01', '\x20', '\x80'}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      refused += refusal_of(damaged) != "accepted";
    }
  }
  EXPECT_GT(refused, 200);
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* reason;
};

std::string tensor(const std::string& body) {
  return file_of("{\"w\": " + body + "}", std::string(16, 'x'));
}

TEST_F(SafetensorsTest, HostileHeadersAreRefusedWithAReason) {
  const Hostile cases[] = {
      {"huge length", with_length("{}", UINT64_MAX), "the limit is 100000000"},
      {"length past the limit", with_length("{}", 100'000'001), "the limit is 100000000"},
      {"length past the file", with_length("{}", 1000), "truncated within its header"},
      {"no JSON", file_of("this is not"), "not valid JSON"},
      {"empty header", file_of(""), "not valid JSON"},
      {"array", file_of("[]"), "not a JSON object"},
      {"array of tensors", file_of("[1, 2]"), "is not an object"},
      {"trailing text", file_of("{} {}"), "not valid JSON"},
      {"invalid UTF-8", file_of("{\"\xff\": 1}"), "not valid JSON"},
      {"nested arrays", file_of("{\"w\":" + std::string(100'000, '[')), "nested too deeply"},
      {"nested objects", tensor(R"({"dtype": {"a": {"b": {}}}})"), "nested too deeply"},
      {"tensor is a number", tensor("7"), "is not an object"},
      {"tensor is a list", tensor("[1]"), "is not an object"},
      {"no dtype", tensor(R"({"shape": [4], "data_offsets": [0, 16]})"), "no valid 'dtype'"},
      {"unknown dtype", tensor(R"({"dtype": "F33", "shape": [4], "data_offsets": [0, 16]})"),
       "unknown dtype 'F33'"},
      {"no shape", tensor(R"({"dtype": "F32", "data_offsets": [0, 16]})"), "no valid 'shape'"},
      {"negative extent", tensor(R"({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]})"),
       "list of sizes"},
      {"fractional extent", tensor(R"({"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]})"),
       "list of sizes"},
      {"overflowing shape",
       tensor(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 16]})"),
       "too large"},
      {"overflowing bytes",
       tensor(R"({"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 0]})"),
       "do not match"},
      {"one offset", tensor(R"({"dtype": "F32", "shape": [4], "data_offsets": [0]})"),
       "no valid 'data_offsets'"},
      {"offsets reversed", tensor(R"({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]})"),
       "do not match"},
      {"offset past int64",
       tensor(R"({"dtype": "F32", "shape": [4],)"
              R"( "data_offsets": [18446744073709551600, 18446744073709551615]})"),
       "list of sizes"},
      {"too few bytes", tensor(R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 12]})"),
       "do not match"},
      {"offsets past the file",
       tensor(R"({"dtype": "F32", "shape": [8], "data_offsets": [0, 32]})"), "truncated"},
      {"gap at the front", tensor(R"({"dtype": "F32", "shape": [3], "data_offsets": [4, 16]})"),
       "gap before"},
      {"bytes left over", tensor(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 12]})"),
       "after its last"},
      {"overlap",
       file_of(R"({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]},
                   "b": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}})",
               std::string(16, 'x')),
       "overlaps"},
      {"the same bytes twice",
       file_of(R"({"a": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]},
                   "b": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}})",
               std::string(16, 'x')),
       "overlaps"},
      {"a name twice",
       file_of(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                   "a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}})",
               std::string(16, 'x')),
       "there twice"},
  };
  for (const Hostile& hostile : cases) {
    const std::string reason = refusal_of(hostile.bytes);
    EXPECT_THAT(reason, HasSubstr(hostile.reason)) << hostile.name;
    EXPECT_THAT(reason, HasSubstr("model.safetensors: ")) << hostile.name;
    EXPECT_LT(reason.size(), 400u) << hostile.name;
  }
}

TEST_F(SafetensorsTest, WhatIsNotAFileIsRefused) {
  EXPECT_THAT(refusal(),
              HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  fs::create_directory(directory_ / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("not a regular file"));
  fs::remove(directory_ / "model.safetensors");
  ASSERT_EQ(::mkfifo((directory_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("not a regular file"));
  fs::remove_all(directory_);
  EXPECT_THAT(refusal(), HasSubstr("it is not a directory"));
}

TEST_F(SafetensorsTest, LinksMustStayInsideTheModel) {
  const std::string bytes = file_of(kTwo, kTwoData);
  std::ofstream(root_ / "elsewhere.safetensors", std::ios::binary) << bytes;
  fs::create_symlink(root_ / "elsewhere.safetensors", directory_ / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("outside of the model's directory"));
  fs::remove(directory_ / "model.safetensors");
  fs::create_symlink("nothing", directory_ / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("No such file"));
  fs::remove(directory_ / "model.safetensors");
  write("real.safetensors", bytes);
  fs::create_symlink("real.safetensors", directory_ / "model.safetensors");
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(SafetensorsTest, LinksThatGoUpOrThroughProcLeadOutToo) {
  const std::string bytes = file_of(kTwo, kTwoData);
  std::ofstream(root_ / "elsewhere.safetensors", std::ios::binary) << bytes;
  const int fd = ::open((root_ / "elsewhere.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const std::string magic = "/proc/self/fd/" + std::to_string(fd);
  for (const std::string& target : {std::string("../elsewhere.safetensors"), magic}) {
    fs::create_symlink(target, directory_ / "model.safetensors");
    EXPECT_THAT(refusal(), HasSubstr("outside of the model's directory")) << target;
    fs::remove(directory_ / "model.safetensors");
  }
  ::close(fd);
}

TEST_F(SafetensorsTest, ALinkThatIsSwappedMeanwhileLeadsNowhereElse) {
  const auto one = [](float value) {
    return file_of(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
                   bytes_of<float>({value}));
  };
  std::ofstream(root_ / "secret.safetensors", std::ios::binary) << one(13);
  write("real.safetensors", one(1));
  fs::create_symlink("real.safetensors", directory_ / "model.safetensors");
  std::atomic<bool> over = false;
  std::thread swapper([&] {
    for (int i = 0; !over; ++i) {
      fs::create_symlink(i % 2 == 0 ? "../secret.safetensors" : "real.safetensors",
                         directory_ / "next");
      fs::rename(directory_ / "next", directory_ / "model.safetensors");
    }
  });
  int num_read = 0, num_refused = 0;
  while (num_read < 200 || num_refused < 200) {
    try {
      at::Tensor a = at::empty({1});
      WeightFiles::open(directory_).read("a", 0, a);
      EXPECT_EQ(a.item<float>(), 1) << "what lies outside was read";
      ++num_read;
    } catch (const UserError&) {
      ++num_refused;
    }
  }
  over = true;
  swapper.join();
}

TEST_F(SafetensorsTest, ASnapshotOfTheHuggingFaceCacheMayLinkToItsBlobs) {
  const fs::path repository = root_ / "models--org--name";
  fs::create_directories(repository / "blobs");
  fs::create_directories(repository / "snapshots" / "abc");
  std::ofstream(repository / "blobs" / "0123", std::ios::binary) << file_of(kTwo, kTwoData);
  fs::create_symlink("../../blobs/0123", repository / "snapshots" / "abc" / "model.safetensors");
  directory_ = repository / "snapshots" / "abc";
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(SafetensorsTest, AnIndexNamesTheFiles) {
  const auto one = [](const std::string& name) {
    return file_of("{\"" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
                   bytes_of<float>({3}));
  };
  write("one.safetensors", one("a"));
  write("two.safetensors", one("b"));
  const auto index = [&](const std::string& map) {
    write("model.safetensors.index.json", "{\"weight_map\": " + map + "}");
    return refusal();
  };
  EXPECT_EQ(index(R"({"a": "one.safetensors", "b": "two.safetensors"})"), "accepted");
  at::Tensor b = at::empty({1});
  WeightFiles::open(directory_).read("b", 0, b);
  EXPECT_EQ(b.item<float>(), 3);

  EXPECT_THAT(index(R"({"a": "one.safetensors", "b": "three.safetensors"})"),
              HasSubstr("three.safetensors: No such file"));
  EXPECT_THAT(index(R"({"a": "one.safetensors", "c": "two.safetensors"})"),
              HasSubstr("it lacks the tensor 'c'"));
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "", ".", "..", "sub/one.safetensors"}) {
    EXPECT_THAT(index("{\"a\": \"" + std::string(name) + "\"}"),
                HasSubstr("not the name of a file"))
        << name;
  }
  EXPECT_THAT(index(R"({"a": 7})"), HasSubstr("is not a string"));
  EXPECT_THAT(index("{}"), HasSubstr("is empty"));
  EXPECT_THAT(index("[]"), HasSubstr("has no 'weight_map'"));
  EXPECT_THAT(index(std::string(100'000, '[')), HasSubstr("nested too deeply"));
  EXPECT_THAT(index("{"), HasSubstr("not valid JSON"));
  write("two.safetensors", one("a"));
  EXPECT_THAT(index(R"({"a": "one.safetensors", "z": "two.safetensors"})"),
              HasSubstr("in another file, too"));
}

}  // namespace
}  // namespace tessera
