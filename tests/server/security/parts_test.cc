// The small parts: the table of roles, limits, the audit log, certificates.
#include <sys/stat.h>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/security/audit_log.h"
#include "server/security/authority.h"
#include "server/security/policy.h"
#include "server/security/private_file.h"
#include "server/security/rate_limits.h"
#include "server/security/x509.h"
#include "tests/server/security/fake_clock.h"
#include "worker/agent/certificate.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

unsigned mode_of(const std::filesystem::path& path) {
  struct stat info{};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

TEST(Policy, FitsTheServices) {
  const absl::Status status =
      check_policy({"tessera.v1.Coordinator", "tessera.v1.AgentService", "tessera.v1.Access"});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Policy, WhatDoesNotFitIsNamed) {
  const std::string less(check_policy({"tessera.v1.Coordinator"}).message());
  EXPECT_THAT(less, HasSubstr("tessera.v1.Access/Enrol is no method"));
  const char* reflection = "grpc.reflection.v1alpha.ServerReflection";
  const std::string more(check_policy({reflection, "tessera.v1.None"}).message());
  EXPECT_THAT(more, HasSubstr("ServerReflection/ServerReflectionInfo has no row"));
  EXPECT_THAT(more, HasSubstr("tessera.v1.None is no service"));
}

TEST(Policy, TheDocumentHasTheTable) {
  EXPECT_THAT(read(SECURITY_DOC), HasSubstr(policy_markdown())) << policy_markdown();
}

TEST(RateLimits, ABurstAndThenTheRate) {
  FakeClock clock;
  RateLimits limits(10, 3, clock);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limits.take("a"), std::nullopt);
  const auto wait = limits.take("a");
  ASSERT_TRUE(wait);
  EXPECT_EQ(*wait, absl::Milliseconds(100));
  EXPECT_EQ(limits.take("b"), std::nullopt) << "another's calls are its own";
  clock.passed += *wait;
  EXPECT_EQ(limits.take("a"), std::nullopt);
  EXPECT_TRUE(limits.take("a"));
  clock.passed += absl::Hours(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limits.take("a"), std::nullopt);
  EXPECT_TRUE(limits.take("a")) << "an hour of silence gives a burst, no more";
}

TEST(RateLimits, ManyClientsTakeBoundedMemoryAndNoMoreCalls) {
  FakeClock clock;
  RateLimits limits(1, 1, clock);
  int allowed = 0;
  for (int i = 0; i < 20'000; ++i) allowed += limits.take(std::to_string(i)) ? 0 : 1;
  EXPECT_EQ(allowed, 10'001) << "those beyond the bound share one bucket";
  clock.passed += absl::Seconds(10);
  EXPECT_EQ(limits.take("new"), std::nullopt) << "who has been quiet is forgotten";
}

TEST(AuditLog, ALineAnEventReadableByItsOwnerAlone) {
  TempDirectory directory;
  FakeClock clock;
  auto log = AuditLog::open(directory.path(), clock);
  ASSERT_TRUE(log.ok()) << log.status();
  const std::string secret(64, 'a');
  ASSERT_TRUE((*log)
                  ->write({{"who", "local"},
                           {"job", ""},
                           {"name", "a\n\"b\xff tsr_0123456789ab_" + secret},
                           {"why", std::string(10'000, 'x')}},
                          true)
                  .ok());
  ASSERT_TRUE((*log)->write({{"who", "token 1"}}, false).ok());
  const std::filesystem::path path = directory.path() / "audit.jsonl";
  EXPECT_EQ(mode_of(path), 0600U);
  std::istringstream lines(read(path));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["time"], "2023-11-14T22:13:20.000Z");
  EXPECT_EQ(first["who"], "local");
  EXPECT_FALSE(first.contains("job"));
  EXPECT_THAT(std::string(first["name"]), HasSubstr("tsr_0123456789ab_***"));
  EXPECT_EQ(std::string(first["why"]).size(), 512U);
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["who"], "token 1");
}

TEST(AuditLog, IsBoundedAndGoesOnWhereItWas) {
  TempDirectory directory;
  FakeClock clock;
  const std::filesystem::path path = directory.path() / "audit.jsonl";
  for (int i = 0; i <= AuditLog::kMaxOld + 1; ++i) {
    std::ofstream(path, std::ios::app).close();
    std::filesystem::resize_file(path, AuditLog::kMaxFileBytes);
    auto log = AuditLog::open(directory.path(), clock);
    ASSERT_TRUE(log.ok());
    ASSERT_TRUE((*log)->write({{"who", std::to_string(i)}}, false).ok());
  }
  EXPECT_THAT(read(path), HasSubstr("\"who\":\"8\""));
  EXPECT_LT(std::filesystem::file_size(path), 1000U);
  EXPECT_TRUE(std::filesystem::exists(path.string() + ".7"));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".8"));
}

TEST(AuditLog, AFullDiskIsSaid) {
  FakeClock clock;
  TempDirectory directory;
  std::filesystem::create_symlink("/dev/full", directory.path() / "audit.jsonl");
  auto log = AuditLog::open(directory.path(), clock);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_TRUE(absl::IsUnavailable((*log)->write({{"who", "local"}}, false)));
}

TEST(Authority, IsMadeOnceAndItsKeyIsItsOwnersAlone) {
  TempDirectory directory;
  FakeClock clock;
  const std::filesystem::path tls = directory.path() / "tls";
  ASSERT_TRUE(Authority::open(tls, clock).ok());
  const std::string certificate = read(tls / "ca.pem");
  EXPECT_EQ(mode_of(tls / "ca-key.pem"), 0600U);
  ASSERT_TRUE(Authority::open(tls, clock).ok());
  EXPECT_EQ(read(tls / "ca.pem"), certificate);
  std::filesystem::permissions(tls / "ca-key.pem", std::filesystem::perms(0640));
  EXPECT_THAT(std::string(Authority::open(tls, clock).status().message()),
              HasSubstr("chmod 600 it"));
}

TEST(Authority, TheServersCertificateFollowsItsNamesAndItsAge) {
  TempDirectory directory;
  FakeClock clock;
  const auto authority = Authority::open(directory.path() / "tls", clock);
  ASSERT_TRUE(authority.ok()) << authority.status();
  const auto ensure = [&](const std::vector<std::string>& hosts) {
    EXPECT_TRUE(authority->ensure_server_certificate(hosts).ok());
    EXPECT_EQ(mode_of(authority->server_key_path()), 0600U);
    return read(authority->server_certificate_path());
  };
  const std::string first = ensure({"host", "127.0.0.1", "::1"});
  EXPECT_THAT(read_certificate(first)->hosts,
              testing::UnorderedElementsAre("host", "127.0.0.1", "::1"));
  EXPECT_EQ(ensure({"127.0.0.1", "host", "::1"}), first);
  const std::string second = ensure({"host", "other"});
  EXPECT_NE(second, first);
  clock.passed = absl::Hours(24 * 240);
  EXPECT_EQ(ensure({"host", "other"}), second);
  clock.passed = absl::Hours(24 * 260);
  EXPECT_NE(ensure({"host", "other"}), second) << "renewed in the last third of its life";
}

TEST(Authority, AnAgentsRequestBecomesACertificateForItsKey) {
  TempDirectory directory;
  FakeClock clock;
  const auto authority = Authority::open(directory.path() / "tls", clock);
  const agent::CertificateFiles files(directory.path() / "identity");
  const auto key = files.key_for_request();
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(*files.key_for_request(), *key) << "the same until there is an answer";
  const auto request = agent::make_certificate_request(*key);
  const auto public_key = public_key_of_request(*request);
  ASSERT_TRUE(public_key.ok()) << public_key.status();
  const absl::Time end = clock.wall() + absl::Hours(1);
  const auto certificate = authority->certify_agent(*public_key, "n1", "0123456789ab", end);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_TRUE(absl::IsNotFound(files.load().status()));
  ASSERT_TRUE(files.store(*certificate).ok());
  const auto loaded = files.load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->node, "n1");
  EXPECT_EQ(loaded->end, end);
  EXPECT_EQ(mode_of(directory.path() / "identity/key.pem"), 0600U);
  EXPECT_EQ(mode_of(directory.path() / "identity/certificate.pem"), 0600U);
}

TEST(Authority, RefusesWhatIsNoRequest) {
  for (const std::string& text : {std::string(), std::string("x"), make_key()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(public_key_of_request(text).status()));
  }
  std::string request = *agent::make_certificate_request(make_key());
  // A bit of the signature.
  const size_t at = request.rfind("-----END") - 10;
  request[at] = request[at] == 'A' ? 'B' : 'A';
  EXPECT_FALSE(public_key_of_request(request).ok());
}

TEST(PrivateFile, IsReadOnlyWhereOthersCannot) {
  TempDirectory directory;
  const std::filesystem::path path = directory.path() / "key";
  ASSERT_TRUE(write_private(path, "secret").ok());
  EXPECT_EQ(mode_of(path), 0600U);
  EXPECT_EQ(*read_private(path), "secret");
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  EXPECT_TRUE(absl::IsFailedPrecondition(read_private(path).status()));
  EXPECT_EQ(*read_small(path), "secret");
  EXPECT_TRUE(absl::IsNotFound(read_small(directory.path() / "none").status()));
}

}  // namespace
}  // namespace tessera::server
