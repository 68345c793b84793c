#include "server/web/host_guard.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

TEST(HostGuard, KnowsTheLoopbackAndTheNamesItWasGiven) {
  const HostGuard guard({"tessera.lab"});
  for (const char* host : {"localhost", "localhost:80", "127.0.0.1:4173", "[::1]", "[::1]:9",
                           "LOCALHOST:1", "tessera.lab", "Tessera.Lab:443"}) {
    EXPECT_TRUE(guard.allows_host(host)) << host;
  }
  for (const char* host :
       {"", "evil.example", "evil.example:80", "localhost.evil.example", "tessera.lab.evil.example",
        "127.0.0.1.evil.example", "[::1].evil.example", ":80", "evil.example:localhost",
        "127.0.0.2", "::1"}) {
    EXPECT_FALSE(guard.allows_host(host)) << host;
  }
}

TEST(HostGuard, OnlyPagesOfTheSameAddressMayAsk) {
  EXPECT_TRUE(HostGuard::allows_origin("", "localhost:80"));
  EXPECT_TRUE(HostGuard::allows_origin("http://localhost:80", "localhost:80"));
  EXPECT_TRUE(HostGuard::allows_origin("https://a.b", "A.b"));
  for (const char* origin :
       {"null", "http://a.b", "http://localhost:81", "http://localhost", "localhost:80",
        "file://localhost:80", "http://localhost:80.evil.example"}) {
    EXPECT_FALSE(HostGuard::allows_origin(origin, "localhost:80")) << origin;
  }
}

TEST(HostGuard, OtherSitesMayNotEvenEmbedAnAnswer) {
  EXPECT_TRUE(HostGuard::allows_site(""));
  EXPECT_TRUE(HostGuard::allows_site("same-origin"));
  EXPECT_TRUE(HostGuard::allows_site("none"));
  EXPECT_FALSE(HostGuard::allows_site("same-site"));
  EXPECT_FALSE(HostGuard::allows_site("cross-site"));
}

}  // namespace
}  // namespace tessera::server
