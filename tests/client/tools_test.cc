// doctor, completion and man: on machines that are made to lack something, and through real shells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/command_tree.h"
#include "client/cli/completion.h"
#include "client/cli/doctor.h"
#include "client/cli/man_page.h"
#include "tests/client/temp_dir.h"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Level = Finding::Level;

constexpr uid_t kNobody = 65534;

Finding find(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return finding;
  }
  ADD_FAILURE() << "there is no finding " << name;
  return {};
}

// What a shell prints.
std::string shell(const std::string& script) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(script.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> part;
  while (const size_t size = fread(part.data(), 1, part.size(), pipe.get())) {
    text.append(part.data(), size);
  }
  return text;
}

bool has_program(const std::string& name) {
  return !shell("command -v " + name + " || true").empty();
}

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    for (const char* name :
         {"tesserad", "tessera-agent", "tessera-trainer", "tessera-data", "tessera-rewards"}) {
      write_program(name, "exit 0");
    }
  }
  void write_program(const std::string& name, const std::string& body) {
    const auto path = dir_.write(name, "#!/bin/sh\n" + body + "\n");
    chmod(path.c_str(), 0755);
  }
  DoctorOptions options() const {
    return {.version = "1.2.3",
            .programs = dir_.path(),
            .trainer = "",
            .state_dir = dir_.path() / "state",
            .cache_dir = dir_.path() / "cache",
            .given_address = "",
            .connect = {},
            .json = false};
  }

  TempDir dir_;
};

TEST_F(DoctorTest, ProgramsStart) {
  for (const Finding& finding : look_at_programs(options())) {
    EXPECT_EQ(finding.level, Level::kOk) << finding.name << ": " << finding.detail;
    EXPECT_THAT(finding.mend, IsEmpty());
  }
}

TEST_F(DoctorTest, AMissingTrainer) {
  std::filesystem::remove(dir_.path() / "tessera-trainer");
  const Finding finding = find(look_at_programs(options()), "tessera-trainer");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.detail, HasSubstr("there is no such file"));
  EXPECT_THAT(finding.mend, HasSubstr("--trainer"));
  DoctorOptions other = options();
  other.trainer = dir_.path() / "tesserad";
  EXPECT_EQ(find(look_at_programs(other), "tessera-trainer").level, Level::kOk);
}

TEST_F(DoctorTest, ATrainerThatDoesNotStart) {
  write_program("tessera-trainer", "exit 127");
  const Finding finding = find(look_at_programs(options()), "tessera-trainer");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.detail, HasSubstr("exit code 127"));
  EXPECT_THAT(finding.mend, HasSubstr("ldd"));
  write_program("tessera-data", "kill -SEGV $$");
  EXPECT_EQ(find(look_at_programs(options()), "tessera-data").level, Level::kWarning)
      << "jobs run without it";
}

TEST_F(DoctorTest, DirectoriesThatCannotBe) {
  EXPECT_EQ(find(look_at_directories(options()), "state directory").level, Level::kOk);
  DoctorOptions broken = options();
  broken.state_dir = dir_.path() / "tesserad" / "state";
  const Finding file = find(look_at_directories(broken), "state directory");
  EXPECT_EQ(file.level, Level::kProblem);
  EXPECT_THAT(file.detail, HasSubstr("tesserad is no directory"));
  broken.state_dir = dir_.path() / std::string(100, 'x');
  EXPECT_THAT(find(look_at_directories(broken), "state directory").detail, HasSubstr("too long"));
  broken.state_dir = "";
  EXPECT_THAT(find(look_at_directories(broken), "state directory").mend, HasSubstr("--state-dir"));
}

TEST_F(DoctorTest, AReadOnlyHome) {
  chmod(dir_.path().c_str(), 0555);
  // Root may write anywhere: it looks as somebody else.
  const auto look = [this] {
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) _exit(2);
    const auto findings = look_at_directories(options());
    const Finding state = find(findings, "state directory");
    const Finding cache = find(findings, "data cache");
    const bool is_told = state.level == Level::kProblem && cache.level == Level::kProblem &&
                         state.detail.find("mode 555") != std::string::npos &&
                         state.mend.find("chmod u+rwx") != std::string::npos;
    _exit(is_told ? 0 : 1);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(0), "");
  chmod(dir_.path().c_str(), 0700);
}

TEST_F(DoctorTest, ADirectoryThatOthersMayWriteTo) {
  std::filesystem::create_directories(dir_.path() / "state");
  chmod((dir_.path() / "state").c_str(), 0777);
  const Finding finding = find(look_at_directories(options()), "state directory");
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_THAT(finding.mend, HasSubstr("chmod go-w"));
}

TEST_F(DoctorTest, TooFewFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto look = [&](rlim_t most) {
    const rlimit few{.rlim_cur = most, .rlim_max = before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    Finding finding = find(look_at_limits(), "open files");
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    return finding;
  };
  EXPECT_EQ(look(128).level, Level::kProblem);
  EXPECT_EQ(look(512).level, Level::kWarning);
  EXPECT_THAT(look(512).mend, HasSubstr("ulimit -n"));
  EXPECT_EQ(look(1024).level, Level::kOk);
}

TEST_F(DoctorTest, AServiceThatDoesNotAnswer) {
  EXPECT_EQ(find(look_at_service(options()), "service").level, Level::kOk) << "none need run";
  DoctorOptions given = options();
  given.given_address = "unix:" + (dir_.path() / "nobody.sock").string();
  given.connect = [&] { return Client::connect(given.given_address); };
  const Finding finding = find(look_at_service(given), "service");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.detail, HasSubstr("does not answer"));
}

TEST_F(DoctorTest, PrintsAndExits) {
  std::ostringstream out, err;
  const Terminal terminal{.out = out, .err = err};
  DoctorOptions all = options();
  EXPECT_EQ(run_doctor(terminal, all), kSucceeded) << out.str();
  EXPECT_THAT(out.str(), HasSubstr("jobs can run here"));
  std::filesystem::remove(dir_.path() / "tesserad");
  out.str("");
  EXPECT_EQ(run_doctor(terminal, all), kJobFailed);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("PROBLEM  tesserad"), HasSubstr("-> build it")));
  all.json = true;
  out.str("");
  EXPECT_EQ(run_doctor(terminal, all), kJobFailed);
  std::istringstream lines(out.str());
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line,
                MatchesRegex(R"x(\{"name":".+","level":"(ok|warning|problem)","detail":".*\})x"));
  }
  EXPECT_GT(count, 15U);
}

class TreeTest : public ::testing::Test {
 protected:
  TreeTest() : app_("What it does", "tool") {
    app_.add_option("--state-dir", text_, "Where");
    CLI::App* run = app_.add_subcommand("run", "Run it's job");
    run->add_option("JOB", text_, "The job")->required();
    run->add_option("--kind,-k", text_, "Of which - dash")->check(CLI::IsMember({"a", "b"}));
    run->add_flag("--fast", flag_, "Be fast");
    app_.add_subcommand("data", "Data")->add_subcommand("look", ".Look");
  }
  CLI::App app_;
  std::string text_;
  bool flag_ = false;
};

TEST_F(TreeTest, SaysWhatCli11Has) {
  const CommandInfo root = command_tree(app_);
  EXPECT_EQ(root.name, "tool");
  std::vector<std::string> paths;
  for (const CommandInfo* command : flat(root)) paths.push_back(command->path);
  EXPECT_THAT(paths, ElementsAre("run", "data", "data look"));
  const CommandInfo& run = root.commands[0];
  OptionInfo kind, job, fast;
  for (const OptionInfo& option : run.options) {
    if (option.names.empty()) job = option;
    if (option.names == std::vector<std::string>{"--kind", "-k"}) kind = option;
    if (option.names == std::vector<std::string>{"--fast"}) fast = option;
  }
  EXPECT_THAT(kind.choices, UnorderedElementsAre("a", "b"));
  EXPECT_TRUE(kind.takes_value);
  EXPECT_FALSE(fast.takes_value);
  EXPECT_EQ(job.value_name, "JOB");
  EXPECT_TRUE(job.required);
  EXPECT_EQ(completes(job), Completes::kJob);
  EXPECT_EQ(completes(kind), Completes::kChoice);
  EXPECT_EQ(completes(fast), Completes::kNothing);
}

TEST_F(TreeTest, ManPageKeepsDashesAndDots) {
  const std::string page = man_page(command_tree(app_), "1.0");
  EXPECT_THAT(page, AllOf(HasSubstr("\\fB\\-\\-kind\\fR, \\fB\\-k\\fR \\fIa|b\\fR"),
                          HasSubstr("Of which \\- dash"), HasSubstr("\n\\&.Look")));
}

// The real program.

std::string tessera(const std::string& arguments) {
  return shell(std::string(TESSERA_BINARY) + " --state-dir /nonexistent/s " + arguments + " 2>&1");
}

// What bash offers for a line of words, of which the last is begun.
std::vector<std::string> offered(const std::string& words) {
  const std::string script = std::string("bash -c 'source <(") + TESSERA_BINARY +
                             " completion bash); COMP_WORDS=(" + TESSERA_BINARY + " " + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); compopt() { :; }; "
                             "_tessera; printf \"%s\\n\" \"${COMPREPLY[@]}\"'";
  std::istringstream lines(shell(script));
  std::vector<std::string> replies;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) replies.push_back(line);
  }
  return replies;
}

TEST(CompletionTest, BashOffersCommandsOptionsAndValues) {
  EXPECT_THAT(offered("ex"), ElementsAre("export"));
  EXPECT_THAT(offered("data \"\""), ElementsAre("inspect"));
  EXPECT_THAT(offered("export --dtype b"), ElementsAre("bfloat16"));
  EXPECT_THAT(offered("completion z"), ElementsAre("zsh"));
  EXPECT_THAT(offered("run --ev"), ElementsAre("--events"));
  EXPECT_THAT(offered("run --events run --st"), ElementsAre("--state-dir"))
      << "a value is no command";
  EXPECT_THAT(offered("watch \"\""), IsEmpty()) << "no service, no ids, and no error";
}

// No command of --help is missing, in any of them.
TEST(CompletionTest, EveryCommandIsInEveryScript) {
  std::istringstream help(tessera("--help"));
  std::vector<std::string> commands;
  bool begun = false;
  for (std::string line; std::getline(help, line);) {
    if (line == "Subcommands:") {
      begun = true;
    } else if (begun && line.starts_with("  ") && line[2] != ' ') {
      commands.push_back(line.substr(2, line.find(' ', 2) - 2));
    } else if (begun && line.empty()) {
      break;
    }
  }
  ASSERT_THAT(commands, AllOf(Contains("run"), Contains("import"), Contains("man")));
  const std::string page = tessera("man");
  for (const char* shell_name : {"bash", "zsh", "fish"}) {
    const std::string script = tessera(std::string("completion ") + shell_name);
    for (const std::string& command : commands) {
      EXPECT_THAT(script, HasSubstr(command)) << shell_name;
      EXPECT_THAT(page, HasSubstr(".SS tessera " + command + "\n"));
    }
  }
}

TEST(CompletionTest, ShellsReadTheirScripts) {
  const TempDir dir;
  for (const std::string name : {"bash", "zsh", "fish"}) {
    if (!has_program(name)) {
      std::cout << "SKIPPED, NOT TESTED: there is no " << name << '\n';
      continue;
    }
    const auto file = dir.write(name, tessera("completion " + name));
    EXPECT_THAT(shell(name + " -n " + file.string() + " 2>&1"), IsEmpty()) << name;
  }
}

TEST(ManTest, GroffHasNothingToSay) {
  if (!has_program("groff")) GTEST_SKIP() << "there is no groff";
  const TempDir dir;
  const auto file = dir.write("tessera.1", tessera("man"));
  EXPECT_THAT(shell("groff -man -Tutf8 -ww -z " + file.string() + " 2>&1"), IsEmpty());
  EXPECT_THAT(
      shell("groff -man -Tascii -P-c -P-b -P-u " + file.string()),
      AllOf(HasSubstr("--accelerate"), HasSubstr("EXIT STATUS"), Not(HasSubstr("Exit codes"))));
  EXPECT_THAT(tessera("man"), Not(HasSubstr("/nonexistent"))) << "no path of this machine";
}

}  // namespace
}  // namespace tessera::cli
