// The command line as a user has it: real programs, but for the trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/child_process.h"
#include "client/cli/state_dir.h"
#include "client/cpp/wait.h"
#include "tests/client/temp_dir.h"

namespace tessera::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::chrono::seconds kTimeout{60};

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

template <class Condition>
bool eventually(Condition condition) {
  const auto give_up = std::chrono::steady_clock::now() + kTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    wait_for({}, milliseconds(10));
  }
  return true;
}

// A `tessera` at work, with its output in files of its own.
class Tessera {
 public:
  Tessera(const TempDir& dir, const std::string& label, const std::string& arguments)
      : out_(dir.path() / (label + ".out")), err_(dir.path() / (label + ".err")) {
    const std::string line = std::string("exec ") + TESSERA_BINARY + " --state-dir " +
                             (dir.path() / "s").string() + " " + arguments + " >" + out_.string() +
                             " 2>" + err_.string();
    pid_ = *start_process({.program = "/bin/sh", .arguments = {"-c", line}});
  }
  ~Tessera() {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }

  void interrupt() const { kill(pid_, SIGINT); }
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return read(out_); }
  std::string err() const { return read(err_); }

 private:
  std::filesystem::path out_, err_;
  pid_t pid_;
};

// Processes whose command line begins with `program` and names `word`.
std::vector<pid_t> find_processes(const std::string& program, const std::string& word) {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = read(entry.path() / "cmdline");
    const std::string command = line.substr(0, line.find('\0'));
    if (command.ends_with("/" + program) && line.find(word) != std::string::npos) {
      pids.push_back(std::stoi(pid));
    }
  }
  return pids;
}

class CliTest : public ::testing::Test {
 protected:
  std::string job(const std::string& name, int ranks = 1) {
    const auto out = dir_.path() / ("out-" + name);
    std::filesystem::create_directories(out);
    return dir_
        .write(name + ".yaml", "name: " + name +
                                   "\nmethod: {sft: {}}\nmodel: {path: m}\ndata: {train: t}\n"
                                   "training: {max_steps: 5, output_dir: " +
                                   out.string() + "}\nparallelism: {num_processes: " +
                                   std::to_string(ranks) + "}\n")
        .string();
  }
  Tessera start(const std::string& label, const std::string& arguments) {
    return Tessera(dir_, label, arguments);
  }
  std::string run(const std::string& file) { return "run " + file + " --trainer " FAKE_TRAINER; }
  void open_gate() { dir_.write("out-gated/gate", ""); }
  bool is_gone() const {
    return find_processes("tesserad", dir_.path().string()).empty() &&
           find_processes("tessera-agent", dir_.path().string()).empty();
  }
  static std::string id_in(const std::string& err) {
    const size_t at = err.find("job ") + 4;
    return err.substr(at, err.find_first_of(" \n", at) - at);
  }
  static int count(const std::string& text, const std::string& word) {
    int found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      ++found;
    return found;
  }

  TempDir dir_;
};

TEST_F(CliTest, RunStartsAServiceAndLeavesNothingRunning) {
  Tessera run = start("run", "--json " + this->run(job("steps", 2)));
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_TRUE(is_gone());
  std::istringstream lines(run.out());
  int num_steps = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(line, MatchesRegex("[{].*[}]"));
    num_steps += count(line, "\"gradNorm\"");
  }
  EXPECT_EQ(num_steps, 5);
  EXPECT_THAT(run.err(), MatchesRegex("job steps-[a-z0-9]+\n"));
}

TEST_F(CliTest, EventsGoToAFileBesideTheDisplay) {
  const std::string file = (dir_.path() / "events").string();
  dir_.write("events", "of an older run\n");
  Tessera shown = start("shown", this->run(job("steps")) + " --events " + file);
  EXPECT_EQ(shown.wait(), 0) << shown.err();
  EXPECT_THAT(shown.out(), HasSubstr("step 5/5"));
  EXPECT_THAT(shown.out(), HasSubstr("memory of rank 0"));
  std::istringstream lines(read(file));
  int num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines) {
    EXPECT_THAT(line, MatchesRegex("[{].*[}]"));
  }
  EXPECT_GT(num_lines, 5);
  EXPECT_EQ(count(read(file), "\"gradNorm\""), 5);
  EXPECT_EQ(count(read(file), "\"SUCCEEDED\""), 1);
}

TEST_F(CliTest, EventsThatCannotBeWrittenStopTheRun) {
  Tessera early = start("early", run(job("steps")) + " --events " + dir_.path().string());
  EXPECT_EQ(early.wait(), 2);
  EXPECT_EQ(early.err(),
            "error: cannot write --events " + dir_.path().string() + ": Is a directory\n");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "s"));
  Tessera full = start("full", run(job("steps")) + " --events /dev/full");
  EXPECT_EQ(full.wait(), 2);
  EXPECT_THAT(full.err(), HasSubstr("error: --events /dev/full could not be written\n"));
}

TEST_F(CliTest, AFailedJobExitsWithOneAndItsSentence) {
  Tessera run = start("run", this->run(job("fail")));
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.err(), HasSubstr("failed: data.train holds no documents"));
  EXPECT_TRUE(is_gone());
}

TEST_F(CliTest, ABadJobFileStartsNothing) {
  const auto file = dir_.write("bad.yaml", "name: a\nlearning_rate: 1\n");
  Tessera run = start("run", this->run(file.string()));
  EXPECT_EQ(run.wait(), 2);
  EXPECT_EQ(run.err(), "error: " + file.string() + ":2:1: learning_rate stands under training\n");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "s"));
}

TEST_F(CliTest, UsageAndAMissingServiceHaveTheirOwnCodes) {
  Tessera usage = start("usage", "frobnicate");
  EXPECT_EQ(usage.wait(), 2);
  EXPECT_THAT(usage.err(), StartsWith("error: "));
  Tessera list = start("list", "--json list");
  EXPECT_EQ(list.wait(), 4);
  EXPECT_THAT(list.err(), StartsWith("error: cannot reach the service at unix:"));
  EXPECT_THAT(list.out(), IsEmpty());
}

TEST_F(CliTest, InspectsDataAndJobsWithoutAService) {
  const std::string tokenizer = TESSERA_DATA_FIXTURES "/qwen";
  const auto data = dir_.write("pairs.jsonl", R"({"prompt": "ab", "completion": "cd"})"
                                              "\n"
                                              R"({"prompt": "x", "completion": "y"})");
  Tessera plain = start("plain", "data inspect " + data.string() + " --tokenizer " + tokenizer);
  EXPECT_EQ(plain.wait(), 0) << plain.err();
  EXPECT_THAT(plain.out(), StartsWith("2 rows of 2 documents: 8 tokens, 5 in the loss (62.5%)"));
  EXPECT_THAT(plain.out(), HasSubstr("--- document 0: 5 tokens, 3 in the loss\n"
                                     "ab{+cd<|im_end|>+}\n\n"
                                     "row 1: 1 document, 3 tokens, 2 in the loss\n"));
  const auto job = dir_.write("job.yaml",
                              "name: look\nmethod: { sft: { completion_only_loss: false } }\n"
                              "model: { path: " +
                                  tokenizer +
                                  " }\n"
                                  "data: { train: pairs.jsonl }\n"
                                  "training: { max_steps: 1, output_dir: out }\n");
  Tessera json = start("json", "--json data inspect " + job.string() + " --rows 1");
  EXPECT_EQ(json.wait(), 0) << json.err();
  EXPECT_EQ(count(json.out(), "\n"), 2);
  EXPECT_THAT(json.out(), HasSubstr(R"("labels":[false,true,true,true,true])"));
  Tessera none = start("none", "data inspect " + job.string() + " --eval");
  EXPECT_EQ(none.wait(), 2);
  EXPECT_THAT(none.err(), HasSubstr("has no data.eval"));
  dir_.write("pairs.jsonl", "{\n");
  Tessera bad = start("bad", "data inspect " + job.string());
  EXPECT_EQ(bad.wait(), 2);
  EXPECT_THAT(bad.err(), HasSubstr("pairs.jsonl:1"));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "s"));
}

TEST_F(CliTest, ProfilesDataAndJobsWithoutAService) {
  const std::string tokenizer = TESSERA_DATA_FIXTURES "/qwen";
  const auto data = dir_.write("pairs.jsonl", R"({"prompt": "ab", "completion": "cd"})"
                                              "\n"
                                              R"({"prompt": "x", "completion": "y"})");
  Tessera plain = start("plain", "profile " + data.string() + " --model " + tokenizer);
  EXPECT_EQ(plain.wait(), 0) << plain.err();
  EXPECT_THAT(plain.out(), StartsWith("2 documents, 8 tokens\n"));
  EXPECT_THAT(plain.out(), HasSubstr("max_length: 64, packing: true, packing_strategy: bfd"));
  Tessera json = start("json", "--json profile " + data.string() + " --model " + tokenizer +
                                   " --max-length 3 --documents 1");
  EXPECT_EQ(json.wait(), 0) << json.err();
  EXPECT_EQ(count(json.out(), "\n"), 1);
  EXPECT_THAT(json.out(), HasSubstr(R"("numDocuments":"1")"));
  EXPECT_THAT(json.out(), HasSubstr(R"("choices":[{"maxLength":3,)"));
  Tessera text = start("text", "profile " + data.string());
  EXPECT_EQ(text.wait(), 2);
  EXPECT_THAT(text.err(), HasSubstr("there is no tokenizer"));
  EXPECT_THAT(text.err(), HasSubstr("; --model DIR names the directory"));
  EXPECT_THAT(text.err(), Not(HasSubstr("model.path"))) << "no job file has it";
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "s"));
}

TEST_F(CliTest, InterruptedRunLeavesTheJobToBeCancelledAndWatched) {
  Tessera run = start("run", "--json " + this->run(job("gated")));
  ASSERT_TRUE(eventually([&] { return count(run.out(), "\"gradNorm\"") == 1; })) << run.err();
  run.interrupt();
  EXPECT_EQ(run.wait(), 130);
  const std::string id = id_in(run.err());
  EXPECT_THAT(run.err(), HasSubstr(" watch " + id + "`"));
  EXPECT_FALSE(is_gone());
  Tessera watch = start("watch", "watch " + id);
  ASSERT_TRUE(eventually([&] { return count(watch.out(), "step 1/5") == 1; })) << watch.err();
  Tessera cancel = start("cancel", "cancel " + id);
  EXPECT_EQ(cancel.wait(), 0) << cancel.err();
  EXPECT_EQ(watch.wait(), 3) << watch.err();
  EXPECT_TRUE(eventually([&] { return is_gone(); }));
}

TEST_F(CliTest, TwoRunsShareAServiceThatIsKilledUnderThem) {
  Tessera gated = start("gated", "--json " + run(job("gated")));
  Tessera steps = start("steps", "--json " + run(job("steps")));
  EXPECT_EQ(steps.wait(), 0) << steps.err();
  ASSERT_TRUE(eventually([&] { return count(gated.out(), "\"gradNorm\"") == 1; })) << gated.err();
  for (const char* program : {"tesserad", "tessera-agent"}) {
    const auto pids = find_processes(program, dir_.path().string());
    ASSERT_EQ(pids.size(), 1u) << program;
    kill(pids[0], SIGKILL);
  }
  open_gate();
  EXPECT_EQ(gated.wait(), 0) << gated.err();
  EXPECT_EQ(count(gated.out(), "\"gradNorm\""), 5) << "no step lost or shown twice";
  EXPECT_TRUE(is_gone());
}

}  // namespace
}  // namespace tessera::cli
