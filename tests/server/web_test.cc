// The dashboard's API as browsers see it.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kNumSteps = 300;
constexpr int kPatienceSeconds = 30;
constexpr size_t kMaxStreams = 64;

httplib::Client client_of(const Service& service) {
  httplib::Client client("127.0.0.1", service.http_port());
  client.set_read_timeout(kPatienceSeconds);
  return client;
}

json get(const Service& service, const std::string& path, int status = 200) {
  auto client = client_of(service);
  const auto response = client.Get(path.c_str());
  if (!response) {
    ADD_FAILURE() << path << ": no answer";
    return {};
  }
  EXPECT_EQ(response->status, status) << path << ": " << response->body;
  EXPECT_EQ(response->get_header_value("Content-Type"), "application/json");
  return json::parse(response->body);
}

// Server-sent events, taken apart.
struct Message {
  std::string id;
  std::string type;
  std::string data;
  std::string comment;
};

class Parser {
 public:
  // Calls `take` for each whole message until it says no.
  bool feed(const char* data, size_t size, const std::function<bool(const Message&)>& take) {
    buffer_.append(data, size);
    for (size_t end; (end = buffer_.find("\n\n")) != std::string::npos;) {
      const Message message = parse(buffer_.substr(0, end));
      buffer_.erase(0, end + 2);
      if (!take(message)) return false;
    }
    return true;
  }

 private:
  static Message parse(const std::string& text) {
    Message message;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("id: ", 0) == 0) message.id = line.substr(4);
      if (line.rfind("event: ", 0) == 0) message.type = line.substr(7);
      if (line.rfind("data: ", 0) == 0) message.data = line.substr(6);
      if (line.rfind(":", 0) == 0) message.comment = line.substr(1);
    }
    return message;
  }

  std::string buffer_;
};

// Reads until `take` says no or the server ends the stream.
void read_stream(const Service& service, const std::string& path, const httplib::Headers& headers,
                 const std::function<bool(const Message&)>& take) {
  auto client = client_of(service);
  Parser parser;
  client.Get(path.c_str(), headers,
             [&](const char* data, size_t size) { return parser.feed(data, size, take); });
}

// Revisions of all events of the job, in connections of at most `stride` each.
std::vector<int64_t> follow_in_pieces(const Service& service, const std::string& id,
                                      size_t stride) {
  std::vector<int64_t> revisions;
  bool over = false;
  while (!over) {
    httplib::Headers headers;
    if (!revisions.empty()) headers.emplace("Last-Event-ID", std::to_string(revisions.back()));
    size_t count = 0;
    read_stream(service, "/api/v1/jobs/" + id + "/events", headers, [&](const Message& message) {
      over = message.type == "end";
      if (over || message.id.empty()) return !over;
      EXPECT_EQ(json::parse(message.data)["revision"], message.id);
      revisions.push_back(std::stoll(message.id));
      return ++count < stride;
    });
  }
  return revisions;
}

std::vector<int64_t> stored_revisions(Service& service, const std::string& id) {
  std::vector<int64_t> revisions;
  for (const v1::Event& event : service.events(id)) revisions.push_back(event.revision());
  return revisions;
}

// A connection that asks for a path and reads only when told to.
class RawConnection {
 public:
  RawConnection(const Service& service, const std::string& path) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    const int small = 4096;
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(service.http_port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(write(fd_, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  // Something has come.
  bool await() const {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&wait, 1, kPatienceSeconds * 1000) == 1;
  }

 private:
  int fd_;
};

// One batch of log lines.
void log_much(Agent& agent, const v1::RunId& run, int lines, size_t bytes) {
  v1::SessionRequest request;
  v1::EventBatch& batch = *request.mutable_event_batch();
  *batch.mutable_run() = run;
  batch.set_begin_offset(agent.offsets[0]);
  batch.set_end_offset(agent.offsets[0] + 10);
  for (int i = 0; i < lines; ++i)
    batch.add_events()->mutable_log()->set_text(std::string(bytes, 'x'));
  agent.send(request);
  agent.offsets[0] = agent.next(v1::SessionResponse::kAck).ack().cursor().offset();
}

std::string metric(const Service& service, const std::string& name) {
  const std::string page = client_of(service).Get("/metrics")->body;
  const size_t begin = page.find("\n" + name + " ");
  if (begin == std::string::npos) return "";
  const size_t value = begin + name.size() + 2;
  return page.substr(value, page.find('\n', value) - value);
}

TEST(Web, ListsJobsInPagesAndByState) {
  Service service;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.insert(ids.begin(), service.submit(make_spec()).id());
  service.cancel(ids[1]);
  std::vector<std::string> listed;
  std::string token;
  do {
    const json page =
        get(service, "/api/v1/jobs?page_size=2&states=QUEUED,RUNNING&page_token=" + token);
    for (const json& job : page["jobs"]) listed.push_back(job["id"]);
    token = page.value("nextPageToken", "");
  } while (!token.empty());
  EXPECT_EQ(listed, (std::vector<std::string>{ids[0], ids[2], ids[3], ids[4]}));
  const json full = get(service, "/api/v1/jobs");
  EXPECT_TRUE(full["jobs"][0]["spec"].contains("training"));
  const json summary = get(service, "/api/v1/jobs?view=summary");
  EXPECT_EQ(summary["jobs"].size(), 5u);
  EXPECT_FALSE(summary["jobs"][0]["spec"].contains("training"));
  EXPECT_EQ(summary["jobs"][0]["spec"]["name"], "demo");
}

TEST(Web, AnswersAsProtobufsJsonDoes) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  std::string expected;
  v1::GetJobResponse response;
  *response.mutable_job() = service.get(job.id());
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(response, &expected).ok());
  EXPECT_EQ(get(service, "/api/v1/jobs/" + job.id()), json::parse(expected));
  Agent agent(service, "n1", 2);
  const json nodes = get(service, "/api/v1/nodes");
  EXPECT_EQ(nodes["nodes"][0]["name"], "n1");
  EXPECT_EQ(nodes["nodes"][0]["devices"].size(), 2u);
}

TEST(Web, ErrorsNameTheParameterOrTheJob) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  const std::string of_job = "/api/v1/jobs/" + job.id();
  const auto says = [&](const std::string& path, int status, const std::string& text) {
    const json answer = get(service, path, status);
    EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr(text)) << path;
  };
  says("/api/v1/jobs/nobody", 404, "no job has the id \"nobody\"");
  says("/api/v1/jobs/nobody/events", 404, "no job has the id");
  says("/api/v1/jobs/nobody/history", 404, "no job has the id");
  says("/api/v1/jobs?states=SLEEPING", 400, "states is \"SLEEPING\"");
  says("/api/v1/jobs?page_size=0", 400, "page_size is \"0\"");
  says("/api/v1/jobs?page_token=nonsense", 400, "page_token");
  says("/api/v1/jobs?view=all", 400, "view is \"all\", must be summary");
  says(of_job + "/history?points=1", 400, "points is \"1\"");
  says(of_job + "/history?rank=-1", 400, "rank is \"-1\"");
  says(of_job + "/events?after=x", 400, "after is \"x\"");
  says(of_job + "/lengths?documents=0", 400, "documents is \"0\"");
  says(of_job + "/lengths", 503, "no agent is connected");
  says("/api/v1/nothing", 404, "there is nothing here");
}

TEST(Web, StreamsResumeWithoutLossOrRepeatWhileEventsCome) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  std::vector<std::vector<int64_t>> seen(4);
  std::vector<std::thread> watchers;
  for (size_t i = 0; i < seen.size(); ++i) {
    const size_t stride = i == 0 ? 1 << 20 : 11 * i + 1;
    watchers.emplace_back(
        [&, i, stride] { seen[i] = follow_in_pieces(service, job.id(), stride); });
  }
  for (int step = 1; step <= kNumSteps; ++step) agent.step(run, 0, step);
  agent.finished(run, 0);
  agent.ended(run);
  for (std::thread& watcher : watchers) watcher.join();
  const std::vector<int64_t> stored = stored_revisions(service, job.id());
  ASSERT_GT(stored.size(), static_cast<size_t>(kNumSteps));
  for (const auto& revisions : seen) EXPECT_EQ(revisions, stored);
}

TEST(Web, AHistoryAndTheEventsAfterItAreTheWhole) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  for (int step = 1; step <= 50; ++step) agent.step(run, 0, step);
  const json history = get(service, "/api/v1/jobs/" + job.id() + "/history?points=10");
  EXPECT_EQ(history["steps"]["lastStep"].size(), 10u);
  EXPECT_EQ(history["steps"]["lastStep"].back(), 50);
  for (int step = 51; step <= 53; ++step) agent.step(run, 0, step);
  std::vector<int> steps;
  const std::string after = history["revision"];
  read_stream(service, "/api/v1/jobs/" + job.id() + "/events?after=" + after, {},
              [&](const Message& message) {
                const json event = json::parse(message.data);
                if (event.contains("step")) steps.push_back(event["step"]["step"]);
                return steps.size() < 3;
              });
  EXPECT_EQ(steps, (std::vector<int>{51, 52, 53}));
  const json lines = get(service, "/api/v1/sparklines?ids=nobody," + job.id());
  EXPECT_EQ(lines["jobs"].size(), 1u);
  EXPECT_EQ(lines["jobs"][job.id()]["step"].back(), 53);
}

TEST(Web, AfterARestartThePortIsTheSameAndAStreamGoesOn) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  const int port = service.http_port();
  std::string last;
  const std::string path = "/api/v1/jobs/" + job.id() + "/events";
  read_stream(service, path, {}, [&](const Message& message) {
    last = message.id;
    return false;
  });
  service.crash();
  service.start();
  EXPECT_EQ(service.http_port(), port);
  service.cancel(job.id());
  std::vector<int64_t> revisions;
  read_stream(service, path, {{"Last-Event-ID", last}}, [&](const Message& message) {
    if (!message.id.empty()) revisions.push_back(std::stoll(message.id));
    return true;
  });
  ASSERT_FALSE(revisions.empty());
  EXPECT_GT(revisions.front(), std::stoll(last));
  EXPECT_EQ(revisions.back(), stored_revisions(service, job.id()).back());
}

TEST(Web, AReaderThatDoesNotReadIsDroppedAndAQuietStreamIsKeptAlive) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  for (int i = 0; i < 8; ++i) log_much(agent, run, 64, 8 << 10);
  const RawConnection slow(service, "/api/v1/jobs/" + job.id() + "/events");
  ASSERT_TRUE(slow.await());
  // Meanwhile one that has read everything hears a heartbeat, by which the slow one is gone.
  std::string comment, num_open;
  const std::string after = std::to_string(service.get(job.id()).revision());
  read_stream(service, "/api/v1/jobs/" + job.id() + "/events?after=" + after, {},
              [&](const Message& message) {
                comment = message.comment;
                num_open = metric(service, "tessera_http_event_streams");
                return num_open != "1";
              });
  EXPECT_EQ(comment, " still here");
  EXPECT_EQ(num_open, "1") << "the one that is read is all there is";
}

TEST(Web, WatchersBeyondTheBoundAreRefused) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  const std::string path = "/api/v1/jobs/" + job.id() + "/events";
  std::vector<RawConnection> open;
  for (size_t i = 0; i < kMaxStreams; ++i) {
    open.emplace_back(service, path);
    ASSERT_TRUE(open.back().await());
  }
  const json refused = get(service, path, 429);
  EXPECT_EQ(refused["error"]["reason"], "TOO_MANY_WATCHERS");
  EXPECT_EQ(metric(service, "tessera_http_event_streams"), std::to_string(kMaxStreams));
  EXPECT_EQ(service.stop(), 0) << "watchers keep it from ending";
}

TEST(Web, OnlyThisMachineAndItsOwnPagesMayAsk) {
  Service service({"--http-name", "tessera.lab"});
  auto client = client_of(service);
  const auto status = [&](const httplib::Headers& headers, const char* path = "/api/v1/nodes") {
    return client.Get(path, headers)->status;
  };
  const std::string here = "127.0.0.1:" + std::to_string(service.http_port());
  EXPECT_EQ(status({{"Host", "evil.example"}}), 403);
  EXPECT_EQ(status({{"Host", "evil.example"}}, "/"), 403);
  EXPECT_EQ(status({{"Host", "tessera.lab"}}), 401) << "through a proxy, so with a token";
  EXPECT_EQ(status({{"Host", here}, {"Origin", "http://" + here}}), 200);
  EXPECT_EQ(status({{"Host", here}, {"Origin", "http://a.b"}}), 403);
  EXPECT_EQ(status({{"Host", here}, {"Sec-Fetch-Site", "cross-site"}}), 403);
  EXPECT_EQ(status({{"Host", here}, {"Sec-Fetch-Site", "cross-site"}}, "/"), 200) << "a link";
  EXPECT_EQ(client.Post("/api/v1/jobs", "{}", "application/json")->status, 405);
  EXPECT_EQ(client.Get("/healthz")->body, "ok\n");
  EXPECT_EQ(client.Get("/readyz")->body, "ok\n");
}

TEST(Web, PagesComeFromHereAloneAndRunNothingThatIsInThem) {
  Service service;
  auto client = client_of(service);
  const auto page = client.Get("/jobs/some-job");
  ASSERT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page->get_header_value("Cache-Control"), "no-cache");
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"),
              testing::AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self'"),
                             testing::Not(HasSubstr("unsafe"))));
  const size_t begin = page->body.find("src=\"/assets/") + 5;
  const std::string script = page->body.substr(begin, page->body.find('"', begin) - begin);
  const auto asset = client.Get(script.c_str());
  ASSERT_EQ(asset->status, 200) << script;
  EXPECT_THAT(asset->get_header_value("Cache-Control"), HasSubstr("immutable"));
  EXPECT_EQ(asset->get_header_value("Content-Type"), "text/javascript; charset=utf-8");
  for (const auto& body : {page->body, asset->body}) EXPECT_GT(body.size(), 100u);
  EXPECT_EQ(client.Get("/", {{"Accept-Encoding", "gzip"}})->status, 200);
  EXPECT_EQ(client.Get("/nothing")->status, 404);
}

}  // namespace
}  // namespace tessera::server
