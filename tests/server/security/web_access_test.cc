// Who may ask tesserad's HTTP port: what the Unix socket and tokens allow, and nothing else.
#include <arpa/inet.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "tests/server/security/secure_service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Credential;

constexpr uid_t kStranger = 54321;
constexpr char kJobs[] = "/api/v1/jobs";

httplib::Result get(Service& service, const std::string& path, const httplib::Headers& headers) {
  httplib::Client client("127.0.0.1", service.http_port());
  client.set_read_timeout(30);
  return client.Get(path.c_str(), headers);
}

// As another user of this machine would. Requires root.
std::string get_as_stranger(int port, const std::string& path, const std::string& headers = "") {
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + "\r\n";
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {  // system calls alone: other threads may have held locks
    char buffer[4096];
    const int fd =
        setgroups(0, nullptr) == 0 && setuid(kStranger) == 0 ? socket(AF_INET, SOCK_STREAM, 0) : -1;
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        write(fd, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
      _exit(1);
    }
    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) {
      if (write(ends[1], buffer, static_cast<size_t>(count)) != count) _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string answer;
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return answer;
}

httplib::Headers bearer(const std::string& secret) {
  return {{"Authorization", "Bearer " + secret}};
}

std::string submit(Service& service, const std::string& project) {
  v1::JobSpec spec = make_spec();
  spec.set_project(project);
  return service.submit(spec).id();
}

TEST(WebAccess, ATesseradThatCannotServeEndsAndSaysWhy) {
  char pattern[] = "/tmp/tessera-state-XXXXXX";
  const std::filesystem::path directory = mkdtemp(pattern);
  // The control loop runs by then: it must have ended before what it uses goes.
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      execl(TESSERAD, TESSERAD, "--state-dir", directory.c_str(), "--http", "10.0.0.1:1", nullptr);
      _exit(127);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 1);
  }
  std::filesystem::remove_all(directory);
}

TEST(WebAccess, AnotherUserOfTheMachineNeedsAToken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  SecureService secure;
  const int port = secure.service().http_port();
  submit(secure.service(), "a");
  for (const char* path : {kJobs, "/", "/metrics", "/api/v1/nodes"}) {
    const std::string answer = get_as_stranger(port, path);
    EXPECT_THAT(answer, HasSubstr(" 401 ")) << path;
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Basic")) << path;
    EXPECT_THAT(answer, HasSubstr("NO_CREDENTIALS")) << path;
  }
  EXPECT_THAT(get_as_stranger(port, "/healthz"), HasSubstr(" 200 "));
  const auto token = secure.create_token(Credential::VIEWER);
  const std::string header = "Authorization: Bearer " + token.secret() + "\r\n";
  EXPECT_THAT(get_as_stranger(port, kJobs, header), HasSubstr("\"project\":\"a\""));
  EXPECT_THAT(get_as_stranger(port, "/metrics", header), HasSubstr("tessera_jobs"));
}

TEST(WebAccess, AUserThatIsNamedReadsWithoutAToken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  SecureService secure({"--http-user", std::to_string(kStranger)});
  const int port = secure.service().http_port();
  EXPECT_THAT(get_as_stranger(port, "/metrics"), HasSubstr("tessera_jobs"));
  const std::string job = submit(secure.service(), "a");
  EXPECT_THAT(get_as_stranger(port, "/api/v1/jobs/" + job + "/lengths"), HasSubstr(" 403 "))
      << "a viewer has no machine read data";
}

TEST(WebAccess, WhatAProxyPassesOnIsNotTheProxys) {
  SecureService secure({"--http-name", "tessera.lab"});
  Service& service = secure.service();
  EXPECT_EQ(get(service, kJobs, {})->status, 200);
  for (const httplib::Headers& headers :
       {httplib::Headers{{"X-Forwarded-For", "10.0.0.1"}}, httplib::Headers{{"Forwarded", "for=x"}},
        httplib::Headers{{"Host", "tessera.lab"}}}) {
    EXPECT_EQ(get(service, kJobs, headers)->status, 401);
  }
}

TEST(WebAccess, ATokenDecidesAndItsProjectsHold) {
  SecureService secure;
  Service& service = secure.service();
  const std::string mine = submit(service, "a"), other = submit(service, "b");
  const auto token = secure.create_token(Credential::VIEWER, "a");
  const auto ask = [&](const std::string& path) {
    return get(service, path, bearer(token.secret()));
  };
  const auto jobs = nlohmann::json::parse(ask(kJobs)->body)["jobs"];
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0]["id"], mine);
  for (const char* part : {"", "/history", "/events"}) {
    EXPECT_EQ(ask("/api/v1/jobs/" + other + part)->status, 403) << part;
  }
  EXPECT_EQ(ask("/api/v1/jobs/" + mine)->status, 200);
  EXPECT_EQ(ask("/api/v1/jobs/" + mine + "/history")->status, 200);
  EXPECT_EQ(ask("/api/v1/jobs/" + mine + "/lengths")->status, 403) << "a submitter's";
  EXPECT_EQ(ask("/api/v1/sparklines?ids=" + other)->body, "{}");
  EXPECT_EQ(ask("/metrics")->status, 403) << "it is of all projects";
  EXPECT_EQ(ask("/")->status, 200);
}

TEST(WebAccess, ATokenThatDoesNotHoldIsNoLocalUser) {
  SecureService secure;
  Service& service = secure.service();
  const auto token = secure.create_token(Credential::VIEWER);
  const auto basic = [](const std::string& pair) {
    return httplib::Headers{{"Authorization", "Basic " + absl::Base64Escape(pair)}};
  };
  EXPECT_EQ(get(service, kJobs, basic("anybody:" + token.secret()))->status, 200);
  for (const httplib::Headers& headers :
       {bearer("nothing"), basic("anybody:nothing"), basic("nothing"), basic(""),
        httplib::Headers{{"Authorization", "Basic ?"}}, httplib::Headers{{"Authorization", "x"}}}) {
    EXPECT_EQ(get(service, kJobs, headers)->status, 401);
  }
  const auto enroller = secure.create_token(Credential::AGENT);
  EXPECT_EQ(get(service, kJobs, bearer(enroller.secret()))->status, 403);
}

TEST(WebAccess, AStreamEndsWhenItsTokenIsRevoked) {
  SecureService secure;
  Service& service = secure.service();
  const std::string job = submit(service, "a");
  const auto token = secure.create_token(Credential::VIEWER);
  httplib::Client client("127.0.0.1", service.http_port());
  client.set_read_timeout(30);
  std::string told;
  const auto ended = client.Get(("/api/v1/jobs/" + job + "/events").c_str(), bearer(token.secret()),
                                [&](const char* data, size_t size) {
                                  if (told.empty()) {
                                    EXPECT_TRUE(secure.revoke(token.credential().id()).ok());
                                  }
                                  told.append(data, size);
                                  return true;
                                });
  EXPECT_TRUE(ended) << "the server ends it";
  EXPECT_THAT(told, HasSubstr("event: refused\ndata: {\"error\""));
  EXPECT_THAT(told, HasSubstr("TOKEN_REVOKED"));
}

}  // namespace
}  // namespace tessera::server
