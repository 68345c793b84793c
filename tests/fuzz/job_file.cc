// Job files, in YAML and JSON.
#include "client/cpp/job_file.h"

#include "proto/spec/rules.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string text(fuzz::text_of(data, size));
  const JobFile job = parse_job_file(text, "job.yaml", "/base");
  // The last line tells how many more there are.
  fuzz::require(job.errors.size() <= kMaxJobFileErrors + 1, "errors are bounded");
  if (job.errors.empty()) {
    fuzz::require(spec::validate(job.spec).empty(), "a job file without errors keeps all rules");
  }
  return 0;
}
