// HTTP requests to the dashboard's API, from who shows a viewer's token and from who does not: the
// library's parser of requests, and our handlers over a store with jobs.
#include <algorithm>

#include <httplib.h>

#include "server/jobs/sqlite.h"
#include "server/jobs/store.h"
#include "server/web/api.h"
#include "tests/fuzz/fuzz.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxRequestBytes = 64 << 10;

// Gives access to the step between a connection and its handlers.
class Server : public httplib::Server {
 public:
  using httplib::Server::process_request;
};

// A connection that has sent all that it will.
class Connection final : public httplib::Stream {
 public:
  explicit Connection(std::string_view sent) : sent_(sent) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    size = std::min(size, sent_.size());
    std::copy_n(sent_.data(), size, to);
    sent_.remove_prefix(size);
    return static_cast<ssize_t>(size);
  }
  ssize_t write(const char*, size_t size) override { return static_cast<ssize_t>(size); }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = "::1", port = 1; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = "::1", port = 2; }
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  std::string_view sent_;
};

template <typename T>
T opened(absl::StatusOr<T> result) {
  fuzz::require(result.ok(), "the service can be set up");
  return *std::move(result);
}

// What tesserad has behind its handlers.
class Service {
 public:
  Service() {
    for (const auto state : {v1::Job::SUCCEEDED, v1::Job::RUNNING}) {
      JobRecord record;
      record.mutable_job()->set_id(v1::Job::State_Name(state));
      record.mutable_job()->set_state(state);
      record.mutable_job()->mutable_spec()->set_project("a");
      store_->insert(record, record.job().id(), record.job().spec());
      v1::Event event;
      event.mutable_step()->set_step(1);
      store_->append(record.number(), event);
    }
    store_->commit();
    v1::CreateTokenRequest request;
    request.set_role(v1::Credential::VIEWER);
    request.add_projects("a");
    request.mutable_lifetime()->set_seconds(24 * 3600);
    token_ = opened(credentials_->create(request, "")).secret();
    // Nobody waits for events that will not come.
    streams_.stop();
    api_.route(server_);
    server_.set_payload_max_length(kMaxRequestBytes);
    server_.set_exception_handler([](const auto&, auto&, const std::exception_ptr&) {
      fuzz::require(false, "handlers answer with a status");
    });
  }

  void ask(std::string_view sent, bool with_token) {
    Connection connection(sent);
    bool is_closed = false;
    server_.process_request(connection, true, is_closed, [&](httplib::Request& request) {
      if (with_token) request.set_header("Authorization", "Bearer " + token_);
    });
  }

 private:
  const fuzz::Directory directory_;
  const SystemClock clock_;
  SqliteStorage storage_{directory_.path()};
  const std::unique_ptr<Store> store_ = opened(Store::open(storage_));
  Reader reader_{storage_};
  const std::unique_ptr<Credentials> credentials_ = opened(Credentials::open(storage_, clock_));
  const std::unique_ptr<AuditLog> log_ = opened(AuditLog::open(directory_.path(), clock_));
  const Authenticator authenticator_{*credentials_, {}};
  RateLimits limits_{1e9, 1e9, clock_};
  OpenCalls open_calls_{*credentials_};
  const Gate gate_{authenticator_, limits_, *log_, open_calls_,
                   [this](const std::string& name) -> absl::StatusOr<Gate::JobPlace> {
                     const auto record =
                         reader_([&](Queries& queries) { return queries.find(name); });
                     if (!record.ok()) return record.status();
                     return Gate::JobPlace{record->job().id(), record->job().spec().project()};
                   }};
  Histories histories_{reader_, clock_};
  EventStreams streams_{reader_};
  const HostGuard hosts_{{}};
  const WebGate web_gate_{gate_, hosts_, {}};
  Api api_{{.gate = gate_,
            .reader = reader_,
            .histories = histories_,
            .streams = streams_,
            .nodes = [] { return std::vector<v1::Node>(1); },
            .profile = [](const auto&) { return absl::UnavailableError("no agent"); }},
           web_gate_};
  Server server_;
  std::string token_;
};

}  // namespace
}  // namespace tessera::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  static server::Service service;
  const std::string_view sent = fuzz::text_of(data, size);
  service.ask(sent, true);
  service.ask(sent, false);
  server::HostGuard({"tessera.lab"}).allows_host(sent);
  server::HostGuard::allows_origin(sent, sent);
  return 0;
}
