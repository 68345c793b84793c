// What agents send to be enrolled, and files of certificates.
#include "server/security/x509.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string text(fuzz::text_of(data, size));
  const auto key = server::public_key_of_request(text);
  fuzz::require(!key.ok() || !key->empty(), "a key that is taken can be written");
  server::read_certificate(text).IgnoreError();
  server::public_key_of(text).IgnoreError();
  server::match(text, text);
  return 0;
}
