#include "proto/spec/redact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::spec {
namespace {

const std::string kSecret(64, 'a');
const std::string kUrl = "https://";

TEST(Redact, KeepsAllThatIsNoSecret) {
  for (const char* text : {"",
                           "step 3 of 4",
                           "tsr_",
                           "tsr_short_abc",
                           "a bearer of good news",
                           "Bearer of good",
                           "ftp://localhost/a@b",
                           "eos_token=<|im_end|>",
                           "max_tokens=100000",
                           "token=",
                           "hf_config",
                           "x=1&y=2",
                           "Basic understanding of it",
                           "keys=abcdefgh",
                           "pad_token=512",
                           "see file:///data/x",
                           "data/C:/x@y",
                           "ratio 1:/2@3",
                           "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
                           "mail a@b.c",
                           "\xff\xfe bytes that are no text"}) {
    EXPECT_EQ(redact(text), text);
  }
}

TEST(Redact, TakesTheSecretHalfOfATokenAlone) {
  EXPECT_EQ(redact("token tsr_0123456789ab_" + kSecret + "!"), "token tsr_0123456789ab_***!");
  EXPECT_EQ(redact("tsr_0123456789ab_0f"), "tsr_0123456789ab_***")
      << "a part of one is secret, too";
  EXPECT_EQ(redact("Bearer tsr_0123456789ab_" + kSecret), "Bearer tsr_0123456789ab_***");
}

TEST(Redact, TakesBearersKeysAndUserinfo) {
  EXPECT_EQ(redact("authorization: Bearer eyJhbGciOi.JIUzI1NiJ9-x, next"),
            "authorization: Bearer ***, next");
  EXPECT_EQ(
      redact("a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\nAQ==\n-----END EC PRIVATE KEY-----\nb"),
      "a\n-----BEGIN EC PRIVATE KEY-----***-----END EC PRIVATE KEY-----\nb");
  EXPECT_EQ(redact("-----BEGIN PRIVATE KEY-----\nMHcC"), "-----BEGIN PRIVATE KEY-----***");
  // What stands where the kind of key would is no part of a mark.
  EXPECT_EQ(redact("-----BEGIN tsr_0123456789ab_0f PRIVATE KEY-----"),
            "-----BEGIN tsr_0123456789ab_*** PRIVATE KEY-----");
  EXPECT_EQ(redact(kUrl + "me:pa@ss@host:1/x?y=z@w"), kUrl + "***@host:1/x?y=z@w");
  EXPECT_EQ(redact(kUrl + "key@host and " + kUrl + "u:p@h"),
            kUrl + "***@host and " + kUrl + "***@h");
  EXPECT_EQ(redact("/data/https:/me:pass@host/x"), "/data/https:/***@host/x");
}

TEST(Redact, TakesWhatANameSaysIsASecret) {
  EXPECT_EQ(redact("HF_TOKEN=abcdef123 PATH=/usr/bin"), "HF_TOKEN=*** PATH=/usr/bin");
  EXPECT_EQ(redact("host=db password=hunter22 user=me"), "host=db password=*** user=me");
  EXPECT_EQ(redact("GET /x?api-key=abcdef123&page=2"), "GET /x?api-key=***&page=2");
  EXPECT_EQ(redact("AWS_SECRET_ACCESS_KEY='abc/def+123'"), "AWS_SECRET_ACCESS_KEY='***'");
  EXPECT_EQ(redact("auth_token=Bearer eyJhbGciOi.JIUzI1NiJ9-x"), "auth_token=*** ***");
  EXPECT_EQ(redact("secret=" + kUrl + "me:pa,ss@host/"), "secret=***");
}

TEST(Redact, TakesTokensOfOthers) {
  EXPECT_EQ(redact("with hf_" + kSecret.substr(30) + ", denied"), "with hf_***, denied");
  EXPECT_EQ(redact("Authorization: Basic bWU6aHVudGVyMg0K"), "Authorization: Basic ***");
}

TEST(Redact, TakesEachOfMany) {
  std::string text, expected;
  for (int i = 0; i < 1000; ++i) {
    text += "tsr_0123456789ab_" + kSecret + " ";
    expected += "tsr_0123456789ab_*** ";
  }
  EXPECT_EQ(redact(text), expected);
}

}  // namespace
}  // namespace tessera::spec
