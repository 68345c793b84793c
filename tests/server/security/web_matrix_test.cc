// Every route of tesserad's HTTP port, asked by every kind of caller. What is expected is written
// down here, apart from what the server goes by.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <httplib.h>

#include "server/web/assets.h"
#include "tests/server/security/secure_service.h"

namespace tessera::server {
namespace {

using Set = std::set<std::string>;
using v1::Credential;

// Callers. The job of the requests is of project "a". "nobody": whoever a proxy speaks for.
const Set kUnknown{"nobody", "bad token", "revoked"};
const Set kListers{"viewer",         "viewer of a",    "viewer of b", "submitter",
                   "submitter of a", "submitter of b", "operator"};
const Set kReaders{"viewer", "viewer of a", "submitter", "submitter of a", "operator"};
const Set kWriters{"submitter", "submitter of a", "operator"};
const Set kOfAll{"viewer", "submitter", "operator"};
const Set kEverybody{"nobody",         "bad token",   "revoked",        "viewer",
                     "viewer of a",    "viewer of b", "submitter",      "submitter of a",
                     "submitter of b", "operator",    "enrolment token"};

struct Expected {
  // JOB is the id of the job.
  std::string path;
  Set allowed;
};

// By the pattern that the server gives its handler.
const std::map<std::string, Expected> kExpected{
    {"/healthz", {"/healthz", kEverybody}},
    {"/readyz", {"/readyz", kEverybody}},
    {"/metrics", {"/metrics", kOfAll}},
    {"/api/v1/jobs", {"/api/v1/jobs", kListers}},
    {"/api/v1/jobs/([^/]+)", {"/api/v1/jobs/JOB", kReaders}},
    {"/api/v1/jobs/([^/]+)/history", {"/api/v1/jobs/JOB/history", kReaders}},
    {"/api/v1/jobs/([^/]+)/events", {"/api/v1/jobs/JOB/events", kReaders}},
    {"/api/v1/jobs/([^/]+)/lengths", {"/api/v1/jobs/JOB/lengths", kWriters}},
    {"/api/v1/sparklines", {"/api/v1/sparklines?ids=JOB", kListers}},
    {"/api/v1/nodes", {"/api/v1/nodes", kListers}},
    // Of a coordinator that does not lead.
    {".*", {"", {}}},
};

// The patterns in the server's source, as httplib does not tell what it was given.
Set patterns() {
  Set found;
  static const std::regex kHandler(
      R"((?:get|->(?:Get|Post|Put|Patch|Delete|Options))\(\s*"([^"]+)\")");
  for (const auto& entry : std::filesystem::directory_iterator(WEB_SOURCES)) {
    if (entry.path().extension() != ".cc") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string source = text.str();
    for (std::sregex_iterator it(source.begin(), source.end(), kHandler), end; it != end; ++it) {
      found.insert((*it)[1]);
    }
  }
  return found;
}

std::map<std::string, httplib::Headers> callers(SecureService& secure) {
  std::map<std::string, httplib::Headers> callers;
  const auto bearer = [](const std::string& secret) {
    return httplib::Headers{{"Authorization", "Bearer " + secret}};
  };
  const auto add = [&](const std::string& name, Credential::Role role,
                       const std::string& project = "") {
    callers[name] = bearer(secure.create_token(role, project).secret());
  };
  add("viewer", Credential::VIEWER);
  add("viewer of a", Credential::VIEWER, "a");
  add("viewer of b", Credential::VIEWER, "b");
  add("submitter", Credential::SUBMITTER);
  add("submitter of a", Credential::SUBMITTER, "a");
  add("submitter of b", Credential::SUBMITTER, "b");
  add("operator", Credential::OPERATOR);
  add("enrolment token", Credential::AGENT);
  const auto revoked = secure.create_token(Credential::OPERATOR);
  EXPECT_TRUE(secure.revoke(revoked.credential().id()).ok());
  callers["revoked"] = bearer(revoked.secret());
  std::string bad = revoked.secret();
  bad.back() = bad.back() == '0' ? '1' : '0';
  callers["bad token"] = bearer(bad);
  callers["nobody"] = {{"X-Forwarded-For", "10.0.0.1"}};
  return callers;
}

// The status alone: streams of events do not end by themselves.
int status_of(Service& service, const std::string& path, const httplib::Headers& headers) {
  httplib::Client client("127.0.0.1", service.http_port());
  client.set_read_timeout(60);
  int status = 0;
  client.Get(
      path.c_str(), headers,
      [&](const httplib::Response& response) {
        status = response.status;
        return true;
      },
      [](const char*, size_t) { return false; });
  return status;
}

TEST(WebMatrix, EveryRouteHasARow) {
  Set expected;
  for (const auto& [pattern, row] : kExpected) expected.insert(pattern);
  EXPECT_EQ(patterns(), expected);
}

TEST(WebMatrix, EveryRouteByEveryCaller) {
  SecureService secure;
  v1::JobSpec spec = make_spec();
  spec.set_project("a");
  const std::string job = secure.service().submit(spec).id();
  std::map<std::string, Expected> rows = kExpected;
  rows.erase(".*");
  for (const Asset& asset : assets())
    rows[std::string(asset.path)] = {std::string(asset.path), kListers};
  rows.erase("/index.html");
  for (const char* page : {"/", "/nodes", "/compare", "/jobs/JOB"}) rows[page] = {page, kListers};
  const auto all = callers(secure);
  Set names;
  for (const auto& [name, headers] : all) names.insert(name);
  ASSERT_EQ(names, kEverybody);
  for (auto& [pattern, expected] : rows) {
    if (const size_t at = expected.path.find("JOB"); at != std::string::npos) {
      expected.path.replace(at, 3, job);
    }
    for (const auto& [name, headers] : all) {
      const int status = status_of(secure.service(), expected.path, headers);
      SCOPED_TRACE(expected.path + " by " + name + ": " + std::to_string(status));
      if (expected.allowed.contains(name)) {
        // No machine is there to read documents.
        EXPECT_EQ(status, pattern.ends_with("/lengths") ? 503 : 200);
      } else {
        EXPECT_EQ(status, kUnknown.contains(name) ? 401 : 403);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::server
