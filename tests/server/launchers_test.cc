// The parts of launchers that need no cluster: what they read, write and run.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/launchers/kubernetes_manifest.h"
#include "server/launchers/run_program.h"
#include "server/launchers/slurm.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using State = ClusterJob::State;

const std::vector<std::string> kEnvironment{"PATH=/usr/bin:/bin", "WORD=a b"};

TEST(RunProgram, GivesWhatItPrintsAndItsCode) {
  const auto end = run_program({"sh", "-c", "echo out \"$WORD\"; echo err >&2; exit 3"},
                               kEnvironment, absl::Seconds(60));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->code, 3);
  EXPECT_EQ(end->output, "out a b\n");
  EXPECT_EQ(end->errors, "err\n");
}

TEST(RunProgram, ArgumentsAreNoShellWords) {
  const auto end =
      run_program({"printf", "%s", "$(id); `id` 'x'"}, kEnvironment, absl::Seconds(60));
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->output, "$(id); `id` 'x'");
}

TEST(RunProgram, EndsWhatDoesNotEndAndItsChildren) {
  const auto end =
      run_program({"sh", "-c", "sleep 1000 & sleep 1000"}, kEnvironment, absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(end.status())) << end.status();
}

TEST(RunProgram, TellsOfASignal) {
  const auto end = run_program({"sh", "-c", "kill -9 $$"}, kEnvironment, absl::Seconds(60));
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->code, 128 + 9);
}

TEST(RunProgram, NamesAProgramThatIsNotThere) {
  const auto end = run_program({"no-such-program"}, kEnvironment, absl::Seconds(60));
  EXPECT_TRUE(absl::IsNotFound(end.status())) << end.status();
}

TEST(Slurm, QuotesWordsForTheShell) {
  const std::string hostile = "a'b $(touch x) `y` \"z\"\\\n*";
  const auto end = run_program({"sh", "-c", absl::StrCat("printf %s ", shell_word(hostile))},
                               kEnvironment, absl::Seconds(60));
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->output, hostile);
}

TEST(Slurm, ReadsItsQueue) {
  const auto jobs = parse_squeue(
      "12|RUNNING|None|2|n[1-2]|tessera-ab-7-1\n"
      "9|PENDING|Resources|3||tessera-ab-6-1\n"
      "3|CANCELLED|None|1|n1|tessera-ab-5-1\n"
      "4|COMPLETING|None|1|n1|tessera-ab-5-2\n"
      "13|RUNNING|None|1|n1|tessera-abc-7-1\n"
      "14|RUNNING|None|1|n1|somebody's | job\n"
      "nonsense\n",
      "tessera-ab-");
  ASSERT_EQ(jobs.size(), 4U);
  std::vector<std::string> ids;
  for (const ClusterJob& job : jobs) ids.push_back(job.id);
  EXPECT_THAT(ids, ElementsAre("3", "4", "9", "12"));
  EXPECT_EQ(jobs[0].state, State::kEnded);
  EXPECT_EQ(jobs[1].state, State::kEnding);
  EXPECT_EQ(jobs[2].state, State::kPending);
  EXPECT_EQ(jobs[2].reason, "PENDING (Resources)");
  EXPECT_EQ(jobs[3].state, State::kRunning);
  EXPECT_EQ(jobs[3].num_nodes, 2);
  EXPECT_EQ(jobs[3].name, "tessera-ab-7-1");
}

std::filesystem::path file_of(const std::string& text) {
  const std::filesystem::path path = ::testing::TempDir() + "/sbatch-arguments";
  std::ofstream(path) << text;
  return path;
}

TEST(Slurm, ReadsFurtherArgumentsOfSbatch) {
  const auto arguments =
      read_sbatch_arguments(file_of("# ours\n--account=a b\n\n  --exclusive  \n"));
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_THAT(*arguments, ElementsAre("--account=a b", "--exclusive"));
  for (const char* bad : {"--job-name=x", "--array=1-3", "account=x", "-A x", "--", "rm -rf"}) {
    const auto refused = read_sbatch_arguments(file_of(absl::StrCat("--mem=1G\n", bad, "\n")));
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(absl::StrCat("line 2")));
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(bad));
  }
}

TEST(Kubernetes, MergesATemplateByNames) {
  Json base = Json::parse(R"({"a": {"keep": 1, "change": 2}, "list": [{"name": "x", "v": 1}],
                              "words": ["one"]})");
  merge_template(base, Json::parse(R"({"a": {"change": 3}, "new": true, "words": ["two"],
                                       "list": [{"name": "y"}, {"name": "x", "w": 2}]})"));
  EXPECT_EQ(base, Json::parse(R"({"a": {"keep": 1, "change": 3}, "new": true,
                                  "list": [{"name": "x", "v": 1, "w": 2}, {"name": "y"}],
                                  "words": ["one", "two"]})"));
}

LaunchRequest request() {
  return {.name = "tessera-ab-7-1",
          .job_id = "sft-abcdef",
          .min_nodes = 2,
          .max_nodes = 2,
          .devices_per_node = 8,
          .device = "cuda",
          .time_limit = absl::Minutes(90)};
}

TEST(Kubernetes, AsksForWhatTheJobNeeds) {
  const Json job = job_manifest(request(), {.owner = "ab", .image = "i", .coordinator = "c:1"});
  EXPECT_EQ(job.at("/metadata/name"_json_pointer), "tessera-ab-7-1");
  EXPECT_EQ(job.at("/spec/completions"_json_pointer), 2);
  EXPECT_EQ(job.at("/spec/backoffLimit"_json_pointer), 0);
  const Json& pod = job.at("/spec/template/spec"_json_pointer);
  EXPECT_EQ(pod.at("activeDeadlineSeconds"), 90 * 60);
  EXPECT_EQ(pod.at("/containers/0/resources/limits/nvidia.com~1gpu"_json_pointer), "8");
  EXPECT_EQ(pod.at("/containers/0/securityContext/capabilities/drop"_json_pointer),
            Json::array({"ALL"}));
}

Json pod(const char* status) {
  Json pod =
      Json::parse(R"({"metadata": {"labels": {"job-name": "j"}}, "spec": {"nodeName": "m"}})");
  pod["status"] = Json::parse(status);
  return pod;
}

TEST(Kubernetes, TellsWhereAJobStands) {
  Json job = Json::parse(
      R"({"metadata": {"name": "j", "uid": "u"}, "spec": {"parallelism": 2}, "status": {}})");
  const Json running = pod(R"({"phase": "Running"})");
  const Json waiting = pod(R"({"phase": "Pending", "containerStatuses":
      [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]})");
  ClusterJob seen = cluster_job(job, Json::array({running, waiting}));
  EXPECT_EQ(seen.id, "u");
  EXPECT_EQ(seen.state, State::kPending);
  EXPECT_EQ(seen.reason, "1 of 2 pods run: ImagePullBackOff: no such image");
  seen = cluster_job(job, Json::array({running, running}));
  EXPECT_EQ(seen.state, State::kRunning);
  EXPECT_EQ(seen.num_nodes, 2);
  job["status"]["conditions"] = Json::parse(R"([{"type": "Failed", "status": "True"}])");
  const Json killed = pod(R"({"phase": "Failed", "containerStatuses":
      [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]})");
  seen = cluster_job(job, Json::array({killed}));
  EXPECT_EQ(seen.state, State::kEnded);
  EXPECT_EQ(seen.reason, "Failed: OOMKilled: exit code 137");
  // Not what an API answers; and no reason to fall over.
  EXPECT_EQ(cluster_job(Json::parse(R"({"metadata": [], "status": "x"})"), Json::array({1})).name,
            "");
}

TEST(Kubernetes, ProcessesAreGoneOnlyWhereAKubeletSaysSo) {
  const Json ended = pod(R"({"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]})");
  const Json silent = pod(R"({"phase": "Failed", "reason": "NodeLost"})");
  const Json running = pod(R"({"containerStatuses": [{"state": {"running": {}}}]})");
  Json unscheduled = silent;
  unscheduled["spec"] = Json::object();
  EXPECT_TRUE(are_terminated(Json::array()));
  EXPECT_TRUE(are_terminated(Json::array({ended, unscheduled})));
  EXPECT_FALSE(are_terminated(Json::array({ended, silent})));
  EXPECT_FALSE(are_terminated(Json::array({ended, running})));
}

}  // namespace
}  // namespace tessera::server
