#include "tests/server/service.h"

#include <chrono>
#include <fstream>
#include <thread>

#include "google/rpc/status.pb.h"

namespace tessera::server {
namespace {

constexpr std::chrono::seconds kPatience{20};

std::unique_ptr<grpc::ClientContext> context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kPatience);
  return context;
}

template <typename Detail>
Detail detail_of(const grpc::Status& status) {
  google::rpc::Status details;
  Detail detail;
  details.ParseFromString(status.error_details());
  for (const auto& any : details.details()) {
    if (any.UnpackTo(&detail)) return detail;
  }
  return {};
}

}  // namespace

Service::Service(std::vector<std::string> flags,
                 const std::function<void(const std::filesystem::path&)>& prepare)
    : process_(TESSERAD, directory_.path(), std::move(flags)) {
  if (prepare) prepare(directory_.path());
  start();
}

void Service::start() {
  spawn();
  ASSERT_TRUE(answers());
}

void Service::spawn() {
  process_.start();
  channel_ = support::make_channel(process_.address());
  stub_ = v1::Coordinator::NewStub(channel_);
}

bool Service::answers() {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < give_up) {
    const auto soon = std::chrono::system_clock::now() + std::chrono::milliseconds(50);
    if (channel_->WaitForConnected(soon)) return true;
    if (!process_.runs()) return false;
  }
  return false;
}

int Service::http_port() const {
  int port = 0;
  std::ifstream(process_.state_dir() / "http.port") >> port;
  return port;
}

v1::Job Service::get(const std::string& id) {
  v1::GetJobRequest request;
  v1::GetJobResponse response;
  request.set_id(id);
  const grpc::Status status = stub_->GetJob(context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

grpc::Status Service::submit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
  return stub_->SubmitJob(context().get(), request, response);
}

v1::Job Service::submit(const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  *request.mutable_spec() = spec;
  request.set_request_id("request-" + std::to_string(++num_requests_));
  const grpc::Status status = submit(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

v1::Job Service::cancel(const std::string& id) {
  v1::CancelJobRequest request;
  v1::CancelJobResponse response;
  request.set_id(id);
  const grpc::Status status = stub_->CancelJob(context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

std::vector<v1::Event> Service::events(const std::string& id, int64_t start, bool follow) {
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_start_revision(start);
  request.set_no_follow(!follow);
  const auto call = context();
  auto stream = stub_->WatchJob(call.get(), request);
  std::vector<v1::Event> events;
  v1::WatchJobResponse response;
  while (stream->Read(&response)) events.push_back(response.event());
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return events;
}

v1::Job Service::await(const std::string& id, v1::Job::State state) {
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_start_revision(get(id).revision());
  const auto call = context();
  auto stream = stub_->WatchJob(call.get(), request);
  v1::WatchJobResponse response;
  v1::Job job = get(id);
  while (job.state() != state && stream->Read(&response)) job = get(id);
  call->TryCancel();
  EXPECT_EQ(job.state(), state) << job.reason();
  return job;
}

std::vector<v1::Job::State> Service::states(const std::string& id) {
  std::vector<v1::Job::State> states;
  for (const v1::Event& event : events(id)) {
    if (event.has_state()) states.push_back(event.state().state());
  }
  return states;
}

Agent::Agent(Service& service, const std::string& node, int num_devices,
             const std::vector<v1::RunId>& runs)
    : Agent(service, node, devices(num_devices, "cpu"), runs) {}

Agent::Agent(Service& service, const std::string& node, const std::vector<v1::Device>& devices,
             const std::vector<v1::RunId>& runs)
    : stub_(v1::AgentService::NewStub(service.channel())) {
  context_.set_deadline(std::chrono::system_clock::now() + kPatience);
  stream_ = stub_->Session(&context_);
  v1::SessionRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_node(node);
  hello.set_hostname(node);
  hello.set_address("127.0.0.1");
  for (const v1::Device& device : devices) *hello.add_devices() = device;
  for (const v1::RunId& run : runs) *hello.add_runs() = run;
  stream_->Write(request);
  v1::SessionResponse response;
  if (stream_->Read(&response)) welcome_ = response.welcome();
  for (const v1::Cursor& cursor : welcome_.cursors()) {
    if (cursor.stream() == v1::RANK_STREAM_EVENTS) offsets[cursor.rank()] = cursor.offset();
  }
}

Agent::~Agent() {
  context_.TryCancel();
  v1::SessionResponse response;
  while (stream_->Read(&response)) {
  }
  if (welcome_.epoch() > 0) stream_->Finish();
}

v1::SessionResponse Agent::next(v1::SessionResponse::KindCase kind) {
  v1::SessionResponse response;
  while (stream_->Read(&response)) {
    if (response.kind_case() == kind) return response;
  }
  ADD_FAILURE() << "the session ended before a message of kind " << kind;
  return {};
}

void Agent::send(const v1::SessionRequest& request) { stream_->Write(request); }

grpc::Status Agent::finish() {
  v1::SessionResponse response;
  while (stream_->Read(&response)) {
  }
  welcome_.set_epoch(0);
  return stream_->Finish();
}

v1::Prepare Agent::prepare() {
  const v1::Prepare prepare = next(v1::SessionResponse::kPrepare).prepare();
  v1::SessionRequest request;
  *request.mutable_prepared()->mutable_run() = prepare.run();
  if (prepare.hosts_rank_zero()) request.mutable_prepared()->mutable_rendezvous()->set_port(29500);
  send(request);
  offsets.clear();
  return prepare;
}

v1::Probe Agent::answer_probe(const std::function<void(const v1::Probe&, v1::Probed&)>& fill) {
  const v1::Probe probe = next(v1::SessionResponse::kProbe).probe();
  v1::SessionRequest request;
  request.mutable_probed()->set_probe_id(probe.probe_id());
  fill(probe, *request.mutable_probed());
  send(request);
  return probe;
}

v1::Cursor Agent::event_at(const v1::RunId& run, int rank, int64_t begin,
                           const v1::TrainerEvent& event) {
  v1::SessionRequest request;
  v1::EventBatch& batch = *request.mutable_event_batch();
  *batch.mutable_run() = run;
  batch.set_rank(rank);
  batch.set_begin_offset(begin);
  batch.set_end_offset(begin + 10);
  *batch.add_events() = event;
  send(request);
  return next(v1::SessionResponse::kAck).ack().cursor();
}

v1::Cursor Agent::event(const v1::RunId& run, int rank, const v1::TrainerEvent& event) {
  const v1::Cursor cursor = event_at(run, rank, offsets[rank], event);
  offsets[rank] = cursor.offset();
  return cursor;
}

void Agent::started(const v1::RunId& run, int rank, int resumed_step) {
  v1::TrainerEvent message;
  message.mutable_started()->set_pid(1);
  message.mutable_started()->set_resumed_step(resumed_step);
  event(run, rank, message);
}

void Agent::step(const v1::RunId& run, int rank, int step) {
  v1::TrainerEvent message;
  message.mutable_step()->set_step(step);
  message.mutable_step()->set_total_steps(100);
  message.mutable_step()->set_loss(1.0 / step);
  event(run, rank, message);
}

void Agent::finished(const v1::RunId& run, int rank) {
  v1::TrainerEvent message;
  message.mutable_finished()->set_output("/out/final");
  event(run, rank, message);
  v1::SessionRequest request;
  *request.mutable_rank_exited()->mutable_run() = run;
  request.mutable_rank_exited()->set_rank(rank);
  send(request);
}

void Agent::exited(const v1::RunId& run, int rank, v1::Failure::Kind kind,
                   const std::string& message) {
  v1::SessionRequest request;
  *request.mutable_rank_exited()->mutable_run() = run;
  request.mutable_rank_exited()->set_rank(rank);
  request.mutable_rank_exited()->mutable_failure()->set_kind(kind);
  request.mutable_rank_exited()->mutable_failure()->set_message(message);
  send(request);
}

void Agent::ended(const v1::RunId& run) {
  v1::SessionRequest request;
  *request.mutable_run_ended()->mutable_run() = run;
  send(request);
}

std::vector<v1::Device> devices(int count, const std::string& kind, const std::string& model,
                                int64_t memory_bytes) {
  std::vector<v1::Device> devices(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    v1::Device& device = devices[static_cast<size_t>(i)];
    device.set_index(i);
    device.set_kind(kind);
    device.set_model(model);
    device.set_memory_bytes(memory_bytes);
  }
  return devices;
}

Submitted submit_while(Service& service, const v1::JobSpec& spec,
                       const std::function<void()>& machine) {
  const std::jthread thread(machine);
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  *request.mutable_spec() = spec;
  request.set_request_id("r");
  const grpc::Status status = service.submit(request, &response);
  return {status, response.job()};
}

v1::JobSpec make_spec(int num_processes, int max_restarts) {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_train("/data/train.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  spec.mutable_parallelism()->set_num_processes(num_processes);
  spec.mutable_resources()->set_max_restarts(max_restarts);
  return spec;
}

google::rpc::BadRequest bad_request(const grpc::Status& status) {
  return detail_of<google::rpc::BadRequest>(status);
}

google::rpc::ErrorInfo error_info(const grpc::Status& status) {
  return detail_of<google::rpc::ErrorInfo>(status);
}

}  // namespace tessera::server
