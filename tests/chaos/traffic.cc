#include "tests/chaos/traffic.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/wait.h"
#include "proto/spec/addresses.h"
#include "tests/support/tesserad_process.h"

namespace tessera::chaos {
namespace {

using std::chrono::milliseconds;

// A coordinator that does not come back for so long has failed the test.
constexpr std::chrono::seconds kPatience{120};
constexpr milliseconds kPause{5}, kPollPause{200}, kDownPause{20};
// Of a watch that is broken off: so short that a job has many.
constexpr size_t kMaxPiece = 6;
constexpr int kNumProjects = 3;

// Most jobs are one rank, some are gangs of several nodes.
v1::JobSpec make_spec(std::mt19937_64& random) {
  v1::JobSpec spec;
  spec.set_name("chaos");
  spec.set_project(absl::StrCat("project-", random() % kNumProjects));
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_train("/data/train.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  spec.mutable_training()->set_max_steps(static_cast<int>(1 + random() % 12));
  spec.mutable_parallelism()->set_num_processes(
      random() % 4 == 0 ? 2 + static_cast<int>(random() % 9) : 1);
  spec.mutable_resources()->set_priority(static_cast<int>(random() % 3));
  return spec;
}

}  // namespace

Traffic::Traffic(TrafficOptions options, Journal& journal)
    : options_(std::move(options)), journal_(journal) {
  std::seed_seq seeds{options_.seed};
  std::vector<uint32_t> drawn(static_cast<size_t>(options_.num_submitters + options_.num_watchers));
  seeds.generate(drawn.begin(), drawn.end());
  auto next = drawn.begin();
  for (int i = 0; i < options_.num_submitters; ++i) {
    submitters_.emplace_back(
        [this, seed = *next++](std::stop_token stop) { submit_for_ever(std::move(stop), seed); });
  }
  for (int i = 0; i < options_.num_watchers; ++i) {
    watchers_.emplace_back(
        [this, seed = *next++](std::stop_token stop) { watch_for_ever(std::move(stop), seed); });
  }
  poller_ = std::jthread([this](std::stop_token stop) { poll_for_ever(std::move(stop)); });
}

Traffic::~Traffic() { finish(); }

void Traffic::finish_submits() {
  for (std::jthread& thread : submitters_) thread.request_stop();
  submitters_.clear();
}

void Traffic::finish() {
  finish_submits();
  for (std::jthread& thread : watchers_) thread.request_stop();
  watchers_.clear();
  poller_ = {};
}

void Traffic::submit_for_ever(std::stop_token stop, uint64_t seed) {
  std::mt19937_64 random(seed);
  Client client = *Client::connect(options_.address, kPatience);
  while (!stop.stop_requested()) {
    const uint64_t action = random() % 10;
    if (action < 6) {
      if (journal_.num_unfinished() < options_.max_unfinished) submit(client, random);
    } else if (action < 8) {
      change(client, random);
    } else {
      if (const auto id = journal_.pick(random)) look(client, *id);
    }
    wait_for(stop, kPause);
  }
}

void Traffic::submit(Client& client, std::mt19937_64& random) {
  const std::string request_id = absl::StrCat("request-", options_.seed, "-", ++next_request_);
  const v1::JobSpec spec = make_spec(random);
  // As a user does who did not hear the answer, and another one at the same time.
  const bool at_once = random() % 8 == 0;
  const bool again = random() % 4 == 0;
  const auto ask = [&] {
    ++counts_.num_submits;
    const auto job = client.submit(spec, request_id);
    if (job.ok()) {
      journal_.acknowledged(request_id, *job);
    } else {
      journal_.violate(absl::StrCat("submit ", request_id, ": ", job.status().ToString()));
    }
  };
  {
    std::jthread other;
    if (at_once) other = std::jthread(ask);
    ask();
  }
  if (again) ask();
  counts_.num_repeats += at_once + again;
}

void Traffic::change(Client& client, std::mt19937_64& random) {
  const auto id = journal_.pick(random);
  if (!id) return;
  ++counts_.num_changes;
  switch (random() % 4) {
    case 0:
      journal_.asked_to_cancel(*id);
      return ask("cancel", *id, [&] { return client.cancel(*id); });
    case 1:
      // Whoever suspends a job resumes it: none is left behind.
      ask("suspend", *id, [&] { return client.suspend(*id); });
      return ask("resume", *id, [&] { return client.resume(*id); });
    default:
      return ask("resume", *id, [&] { return client.resume(*id); });
  }
}

void Traffic::look(Client& client, const std::string& id) {
  ++counts_.num_looks;
  ask("get", id, [&] { return client.get(id); });
}

void Traffic::ask(const char* what, const std::string& id,
                  const std::function<absl::StatusOr<v1::Job>()>& call) {
  const Known before = journal_.known(id);
  const absl::StatusOr<v1::Job> job = call();
  if (job.ok()) return journal_.answered(before, *job);
  // What has ended can neither be suspended nor resumed.
  if (absl::IsFailedPrecondition(job.status())) return;
  journal_.violate(absl::StrCat(what, " ", id, ": ", job.status().ToString()));
}

void Traffic::poll_for_ever(std::stop_token stop) {
  Client client = *Client::connect(options_.address, kPatience);
  while (!stop.stop_requested()) {
    for (const std::string& id : journal_.unfinished()) {
      if (stop.stop_requested()) return;
      look(client, id);
    }
    wait_for(stop, kPollPause);
  }
}

void Traffic::watch_for_ever(std::stop_token stop, uint64_t seed) {
  std::mt19937_64 random(seed);
  Turns turns;
  for (const std::string& address : spec::split_addresses(options_.address)) {
    turns.stubs.push_back(v1::Coordinator::NewStub(support::make_channel(address)));
  }
  while (!stop.stop_requested()) {
    const auto id = journal_.pick(random);
    if (id) {
      watch(turns, *id, random);
    } else {
      wait_for(stop, kPause);
    }
  }
}

bool Traffic::watch_piece(Turns& turns, const std::string& id, size_t max_events,
                          std::vector<int64_t>& revisions) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_start_revision(revisions.empty() ? 0 : revisions.back() + 1);
  const auto stream = turns.stubs[turns.current]->WatchJob(&context, request);
  v1::WatchJobResponse response;
  size_t count = 0;
  while (count < max_events && stream->Read(&response)) {
    const v1::Event& event = response.event();
    if (!revisions.empty() && event.revision() <= revisions.back()) {
      journal_.violate(absl::StrCat("a watch of ", id, " gave revision ", event.revision(),
                                    " after ", revisions.back()));
    }
    journal_.saw(id, event);
    revisions.push_back(event.revision());
    ++count;
  }
  const bool is_broken_off = count == max_events;
  if (is_broken_off) context.TryCancel();
  const grpc::Status status = stream->Finish();
  counts_.num_watched_events += static_cast<int64_t>(count);
  if (status.ok()) return true;
  counts_.num_resumes += is_broken_off;
  counts_.num_broken += !is_broken_off;
  // gRPC's own words for a call that comes while a standby, about to lead, closes its server.
  const bool was_closing =
      turns.stubs.size() > 1 && status.error_code() == grpc::StatusCode::CANCELLED;
  if (!is_broken_off && !was_closing && status.error_code() != grpc::StatusCode::UNAVAILABLE) {
    journal_.violate(absl::StrCat("a watch of ", id, " ended with code ",
                                  static_cast<int>(status.error_code()), ": ",
                                  status.error_message()));
    return true;
  }
  if (is_broken_off) return false;
  turns.current = (turns.current + 1) % turns.stubs.size();
  std::this_thread::sleep_for(kDownPause);
  return false;
}

void Traffic::watch(Turns& turns, const std::string& id, std::mt19937_64& random) {
  std::vector<int64_t> seen;
  while (!watch_piece(turns, id, 1 + random() % kMaxPiece, seen)) {
  }
  // The job has ended: what is stored is all there ever was.
  std::vector<int64_t> stored;
  const auto all = static_cast<size_t>(-1);
  while (!watch_piece(turns, id, all, stored)) {
  }
  if (seen != stored) {
    journal_.violate(absl::StrCat("a watch of ", id, " in pieces saw ", seen.size(),
                                  " events, stored are ", stored.size()));
  }
  ++counts_.num_watched_jobs;
}

}  // namespace tessera::chaos
