#include "worker/agent/confinement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <thread>

#include "tessera/v1/options.pb.h"
#include "tests/worker/agent/temp_dir.h"
#include "worker/agent/process.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr int kNumReads = 2000;

using Fields = std::vector<const google::protobuf::FieldDescriptor*>;

// Calls visit(fields) for each field of a job that is a path: it, after the messages it is in.
void for_each_path(const google::protobuf::Descriptor* message, const Fields& above,
                   const std::function<void(const Fields&)>& visit) {
  for (int i = 0; i < message->field_count(); ++i) {
    Fields fields = above;
    fields.push_back(message->field(i));
    if (message->field(i)->options().GetExtension(v1::rule).path()) visit(fields);
    if (message->field(i)->message_type() != nullptr && !message->field(i)->is_map()) {
      for_each_path(message->field(i)->message_type(), fields, visit);
    }
  }
}

// Beneath `allowed` are directories and links of every kind; the secret lies beside it.
class ConfinementTest : public testing::Test {
 protected:
  ConfinementTest() {
    fs::create_directories(allowed_ / "models/m");
    fs::create_directories(outside_);
    fs::create_directories(work_);
    write(allowed_ / "models/m/config.json", "harmless");
    write(outside_ / "secret", "the secret");
    ConfinementOptions options;
    options.allowed = {allowed_};
    options.work = {work_};
    auto made = Confinement::make(options);
    if (made.ok()) confinement_ = *std::move(made);
    why_not_ = std::string(made.status().message());
  }
  void SetUp() override {
    if (confinement_ == nullptr) GTEST_SKIP() << why_not_;
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

  // The field that is refused of a job with this model; empty: none is.
  std::string refused(const fs::path& model) {
    v1::Probe probe;
    probe.mutable_check()->mutable_model()->set_path(model);
    probe.mutable_check()->mutable_training()->set_output_dir(allowed_ / "out/new");
    probe.mutable_check()->mutable_data()->add_train(allowed_ / "data/*.jsonl");
    std::string field;
    const absl::Status status = confinement_->check(probe, field);
    message_ = std::string(status.message());
    return field;
  }

  // What a confined shell says and does not.
  std::string run(const std::string& script) {
    ProcessOptions options;
    options.command = {"/bin/sh", "-c", script};
    options.environment = {"PATH=/usr/bin:/bin", "A=" + allowed_.string(),
                           "O=" + outside_.string()};
    options.directory = work_;
    options.stdout_path = options.stderr_path = work_ / "output";
    options.ruleset_fd = confinement_->ruleset();
    fs::remove(work_ / "output");
    auto process = Process::start(options, [](const ProcessId&) { return absl::OkStatus(); });
    EXPECT_TRUE(process.ok()) << process.status();
    pollfd ended{(*process)->pidfd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, 60'000), 1);
    (*process)->reap();
    return read_tail(work_ / "output", 1 << 20);
  }

  TempDir directory_;
  const fs::path allowed_ = directory_ / "allowed";
  const fs::path outside_ = directory_ / "outside";
  const fs::path work_ = directory_ / "work";
  std::shared_ptr<const Confinement> confinement_;
  std::string why_not_;
  std::string message_;
};

TEST_F(ConfinementTest, PathsBeneathAreTaken) {
  fs::create_symlink("m", allowed_ / "models/current");
  for (const char* model : {"models/m", "models/../models/m", "models/current", "not/yet/there"}) {
    EXPECT_EQ(refused(allowed_ / model), "") << message_;
  }
  EXPECT_EQ(refused(allowed_), "");
}

TEST_F(ConfinementTest, PathsThatLeadOutAreRefusedByTheirField) {
  fs::create_symlink(outside_, allowed_ / "absolute");
  fs::create_symlink("../../outside", allowed_ / "models/relative");
  fs::create_symlink(outside_ / "new", allowed_ / "dangling");
  fs::create_symlink("/proc/self/cwd", allowed_ / "magic");
  fs::create_symlink("..", allowed_ / "parent");
  for (const fs::path& model :
       {outside_, allowed_ / "../outside", allowed_ / "absolute", allowed_ / "models/relative",
        allowed_ / "models/relative/not/there", allowed_ / "dangling", allowed_ / "magic",
        allowed_ / "parent/outside", fs::path("/"), fs::path("models/m"),
        fs::path(allowed_.string() + "-and-more")}) {
    EXPECT_EQ(refused(model), "model.path");
    EXPECT_THAT(message_, HasSubstr("model.path is \"" + model.string() + "\", must lie"));
    EXPECT_THAT(message_, HasSubstr(allowed_.string()));
  }
}

TEST_F(ConfinementTest, EveryPathOfAJobIsLookedAt) {
  v1::Probe probe;
  std::string field;
  v1::JobSpec& spec = *probe.mutable_profile()->mutable_spec();
  spec.mutable_model()->set_path(allowed_ / "models/m");
  spec.mutable_data()->add_train(allowed_ / "a.jsonl");
  spec.mutable_data()->add_train(outside_ / "*.jsonl");
  EXPECT_FALSE(confinement_->check(probe, field).ok());
  EXPECT_EQ(field, "data.train[1]");
  probe.mutable_generate()->set_model(allowed_ / "models/m");
  EXPECT_TRUE(confinement_->check(probe, field).ok());
  probe.mutable_generate()->set_tokenizer(outside_);
  EXPECT_FALSE(confinement_->check(probe, field).ok());
  EXPECT_EQ(field, "tokenizer");
}

TEST_F(ConfinementTest, EveryFieldThatIsAPathIsLookedAt) {
  int num_fields = 0;
  for_each_path(v1::JobSpec::descriptor(), {}, [&](const Fields& fields) {
    v1::Probe probe;
    google::protobuf::Message* message = probe.mutable_check();
    std::string name;
    for (const auto* field : fields) {
      name += (name.empty() ? "" : ".") + field->name();
      const auto& reflection = *message->GetReflection();
      if (field == fields.back() && field->is_repeated()) {
        reflection.AddString(message, field, outside_);
      } else if (field == fields.back()) {
        reflection.SetString(message, field, outside_);
      } else if (field->is_repeated()) {
        message = reflection.AddMessage(message, field);
      } else {
        message = reflection.MutableMessage(message, field);
      }
    }
    std::string refused;
    EXPECT_FALSE(confinement_->check(probe, refused).ok()) << name;
    EXPECT_EQ(refused, name);
    ++num_fields;
  });
  EXPECT_GT(num_fields, 25) << "the fields of a job that are paths are no longer found";
}

TEST_F(ConfinementTest, ASocketIsLookedAtAsAPathIs) {
  v1::Probe probe;
  probe.mutable_check()->add_reward_funcs()->mutable_server()->set_address("rewards:7000");
  v1::RewardServer& server = *probe.mutable_check()->add_reward_funcs()->mutable_server();
  std::string field;
  server.set_address("unix://" + (allowed_ / "socket").string());
  EXPECT_TRUE(confinement_->check(probe, field).ok());
  server.set_address("unix://" + (outside_ / "socket").string());
  EXPECT_FALSE(confinement_->check(probe, field).ok());
  EXPECT_EQ(field, "reward_funcs[1].server.address");
}

TEST_F(ConfinementTest, ProgramsReadAndWriteBeneathAlone) {
  EXPECT_EQ(run("cat $A/models/m/config.json"), "harmless");
  EXPECT_EQ(run("echo new > $A/new && cat $A/new && mv $A/new $A/models/ && rm $A/models/new"),
            "new\n");
  for (const char* script :
       {"cat $O/secret", "ln -s $O/secret $A/link; cat $A/link", "cat /proc/self/root$O/secret",
        "cat $A/../outside/secret", "cd $O && cat secret", "mv $O/secret $A/; cat $A/secret",
        "sh -c 'cat $O/secret'", "cat /etc/shadow /etc/passwd", "ls $O", "ls /"}) {
    EXPECT_THAT(run(script), HasSubstr("denied")) << script;
    EXPECT_THAT(run(script), Not(HasSubstr("the secret"))) << script;
  }
  EXPECT_THAT(run("ln $O/secret $A/hard; cat $A/hard"), Not(HasSubstr("the secret")));
  EXPECT_THAT(run("echo x > $O/written"), HasSubstr("denied"));
  EXPECT_FALSE(fs::exists(outside_ / "written"));
  EXPECT_TRUE(fs::exists(outside_ / "secret"));
}

TEST_F(ConfinementTest, AFileThatIsThereByAHardLinkIsThere) {
  // Who made it could read the file. The kernel has no other name for it.
  fs::create_hard_link(outside_ / "secret", allowed_ / "hard");
  EXPECT_EQ(run("cat $A/hard"), "the secret");
}

TEST_F(ConfinementTest, ALinkThatIsSwappedWhileItIsReadLeadsNowhereElse) {
  std::atomic<bool> over = false;
  std::thread swapper([&] {
    const fs::path next = allowed_ / "next";
    for (int i = 0; !over; ++i) {
      fs::create_symlink(i % 2 == 0 ? allowed_ / "models/m/config.json" : outside_ / "secret",
                         next);
      fs::rename(next, allowed_ / "swapped");
    }
  });
  const std::string script = "i=0; while [ $i -lt " + std::to_string(kNumReads) +
                             " ]; do read -r line < $A/swapped; echo \"$line\"; i=$((i+1)); done";
  const std::string output = run(script);
  over = true;
  swapper.join();
  EXPECT_THAT(output, HasSubstr("harmless"));
  EXPECT_THAT(output, HasSubstr("denied")) << "the link was never caught pointing out";
  EXPECT_THAT(output, Not(HasSubstr("the secret")));
}

TEST_F(ConfinementTest, WhatIsAllowedMustBeADirectory) {
  ConfinementOptions options;
  options.allowed = {outside_ / "secret"};
  const auto made = Confinement::make(options);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("--allow-path is \""));
}

}  // namespace
}  // namespace tessera::agent
