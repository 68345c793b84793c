// Configurations of TRL and of accelerate, for `tessera import`.
#include "client/cpp/job_file.h"
#include "client/trl/import.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto [method, config, accelerate] = fuzz::parts_of<3>(fuzz::text_of(data, size));
  trl::ImportOptions options;
  options.method = method;
  options.config = {"config.yaml", std::string(config)};
  if (!accelerate.empty()) options.accelerate = {"accelerate.yaml", std::string(accelerate)};
  options.directory = "/base";
  options.model = "/base/model";
  options.train = {"/base/train.jsonl"};
  const trl::Imported imported = trl::import_config(options);
  if (!imported.errors.empty()) return 0;
  fuzz::require(parse_job_file(imported.job_file, "job.yaml", "/base").errors.empty(),
                "a job file that was imported without errors is one");
  return 0;
}
