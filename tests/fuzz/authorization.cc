// Authorization headers, over HTTP.
#include "server/security/authenticator.h"

#include "server/jobs/sqlite.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  using namespace tessera::server;
  static const fuzz::Directory directory;
  static const SystemClock clock;
  static SqliteStorage storage(directory.path());
  static const auto credentials = Credentials::open(storage, clock);
  fuzz::require(credentials.ok(), "the service can be set up");
  const Authenticator authenticator(**credentials, {});
  const WebCaller caller{.peer = "http:127.0.0.1:1",
                         .authorization = std::string(fuzz::text_of(data, size)),
                         .user = std::nullopt};
  fuzz::require(!authenticator.identify(caller).ok(), "no token was made, so none holds");
  return 0;
}
