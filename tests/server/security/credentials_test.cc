#include "server/security/credentials.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "server/jobs/errors.h"
#include "server/jobs/sqlite.h"
#include "tests/server/security/fake_clock.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Credential;

std::string reason(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload(kErrorInfoType);
  if (payload) info.ParseFromString(std::string(*payload));
  return info.reason();
}

v1::CreateTokenRequest token(Credential::Role role, int64_t seconds = 3600) {
  v1::CreateTokenRequest request;
  request.set_role(role);
  request.mutable_lifetime()->set_seconds(seconds);
  return request;
}

class CredentialsTest : public testing::Test {
 protected:
  CredentialsTest() { reopen(); }

  void reopen() {
    credentials_.reset();
    auto opened = Credentials::open(storage_, clock_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    credentials_ = *std::move(opened);
  }

  v1::CreateTokenResponse create(const v1::CreateTokenRequest& request) {
    auto created = credentials_->create(request, "local");
    EXPECT_TRUE(created.ok()) << created.status();
    return *created;
  }

  TempDirectory directory_;
  SqliteStorage storage_{directory_.path()};
  FakeClock clock_;
  std::unique_ptr<Credentials> credentials_;
};

TEST_F(CredentialsTest, ATokenIsKnownByItsSecretAndKeptAsAHash) {
  auto request = token(Credential::SUBMITTER);
  request.add_projects("a");
  const auto created = create(request);
  EXPECT_THAT(created.secret(), testing::MatchesRegex("tsr_[0-9a-f]{12}_[0-9a-f]{64}"));
  reopen();
  const auto found = credentials_->verify_token(created.secret());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->id(), created.credential().id());
  EXPECT_EQ(found->role(), Credential::SUBMITTER);
  EXPECT_EQ(found->projects(0), "a");
  EXPECT_EQ(found->creator(), "local");
  const std::string secret = created.secret().substr(17);
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    std::ostringstream bytes;
    bytes << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    EXPECT_THAT(bytes.str(), testing::Not(HasSubstr(secret))) << entry.path();
  }
}

TEST_F(CredentialsTest, WhatIsNoTokenIsTurnedAway) {
  const std::string secret = create(token(Credential::VIEWER)).secret();
  std::string other = secret;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& text :
       {std::string(), std::string("x"), secret + "0", other, secret.substr(0, secret.size() - 1),
        "tsr_000000000000_" + secret.substr(17), std::string(81, '\0')}) {
    const auto found = credentials_->verify_token(text);
    EXPECT_TRUE(absl::IsUnauthenticated(found.status())) << text;
    EXPECT_EQ(reason(found.status()), "TOKEN_INVALID");
  }
}

TEST_F(CredentialsTest, TokensEnd) {
  const auto created = create(token(Credential::VIEWER, 60));
  clock_.passed = absl::Seconds(59);
  EXPECT_TRUE(credentials_->verify_token(created.secret()).ok());
  clock_.passed = absl::Seconds(60);
  EXPECT_EQ(reason(credentials_->verify_token(created.secret()).status()), "TOKEN_EXPIRED");

  const auto second = create(token(Credential::VIEWER));
  ASSERT_TRUE(credentials_->revoke(second.credential().id()).ok());
  ASSERT_TRUE(credentials_->revoke(second.credential().id()).ok()) << "twice is once";
  reopen();
  EXPECT_EQ(reason(credentials_->verify_token(second.secret()).status()), "TOKEN_REVOKED");
  EXPECT_TRUE(absl::IsNotFound(credentials_->revoke("none").status()));
}

TEST_F(CredentialsTest, RulesNameTheirFields) {
  const auto fields = [&](const v1::CreateTokenRequest& request) {
    const absl::Status status = credentials_->create(request, "local").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(fields({}), testing::AllOf(HasSubstr("role must be"), HasSubstr("lifetime is 0 s")));
  EXPECT_THAT(fields(token(Credential::VIEWER, 400 * 86400)), HasSubstr("lifetime is"));
  auto request = token(Credential::OPERATOR);
  request.add_projects("a");
  EXPECT_THAT(fields(request), HasSubstr("projects must be empty"));
  request = token(Credential::VIEWER);
  request.set_node("n");
  request.add_projects("a b");
  EXPECT_THAT(fields(request), testing::AllOf(HasSubstr("node must be empty"), HasSubstr("a b")));
  request = token(Credential::AGENT);
  request.set_node("n/../m");
  EXPECT_THAT(fields(request), HasSubstr("node is \"n/../m\""));
}

TEST_F(CredentialsTest, AnEnrolmentTokenGivesOneKeyOneCertificate) {
  const std::string id = create(token(Credential::AGENT)).credential().id();
  const auto first = credentials_->enrol(id, "n1", "key", absl::Hours(1));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->node(), "n1");
  reopen();
  const auto again = credentials_->enrol(id, "n1", "key", absl::Hours(1));
  ASSERT_TRUE(again.ok()) << "an answer that was lost can be asked for again";
  EXPECT_EQ(again->id(), first->id());
  EXPECT_EQ(reason(credentials_->enrol(id, "n1", "other", absl::Hours(1)).status()), "TOKEN_USED");
  EXPECT_EQ(reason(credentials_->enrol(id, "n2", "key", absl::Hours(1)).status()), "TOKEN_USED");
  EXPECT_TRUE(credentials_->verify_certificate(first->id()).ok());
  EXPECT_EQ(reason(credentials_->verify_certificate(id).status()), "CERTIFICATE_UNKNOWN")
      << "a token is no certificate";
  ASSERT_TRUE(credentials_->revoke(first->id()).ok());
  EXPECT_EQ(reason(credentials_->verify_certificate(first->id()).status()), "CERTIFICATE_REVOKED");
  EXPECT_EQ(reason(credentials_->enrol(id, "n1", "key", absl::Hours(1)).status()), "TOKEN_USED")
      << "a revoked certificate does not come back";
}

TEST_F(CredentialsTest, OnlyATokenOfTheNodeReplacesItsCertificate) {
  const auto enrol = [&](const std::string& node_of_token, const std::string& key) {
    auto request = token(Credential::AGENT);
    request.set_node(node_of_token);
    return credentials_->enrol(create(request).credential().id(), "n1", key, absl::Hours(1));
  };
  const auto first = enrol("", "1");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(reason(enrol("", "2").status()), "NODE_ENROLLED");
  EXPECT_EQ(reason(enrol("n2", "2").status()), "OTHER_NODE");
  ASSERT_TRUE(enrol("n1", "2").ok());
  EXPECT_EQ(reason(credentials_->verify_certificate(first->id()).status()), "CERTIFICATE_REVOKED");
  clock_.passed = absl::Hours(2);
  EXPECT_TRUE(enrol("", "3").ok()) << "one that has ended holds the name no longer";
}

TEST_F(CredentialsTest, RenewalMovesTheEnd) {
  const std::string id = create(token(Credential::AGENT)).credential().id();
  const auto first = credentials_->enrol(id, "n1", "key", absl::Hours(1));
  clock_.passed = absl::Minutes(50);
  ASSERT_TRUE(credentials_->renew(first->id(), absl::Hours(1)).ok());
  clock_.passed = absl::Minutes(100);
  EXPECT_TRUE(credentials_->verify_certificate(first->id()).ok());
  clock_.passed = absl::Minutes(120);
  EXPECT_EQ(reason(credentials_->renew(first->id(), absl::Hours(1)).status()),
            "CERTIFICATE_EXPIRED");
}

TEST_F(CredentialsTest, ListsTheNewestFirst) {
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ids.insert(ids.begin(), create(token(Credential::VIEWER)).credential().id());
    clock_.passed += absl::Seconds(1);
  }
  std::vector<std::string> listed;
  for (const Credential& credential : credentials_->list()) listed.push_back(credential.id());
  EXPECT_EQ(listed, ids);
}

}  // namespace
}  // namespace tessera::server
