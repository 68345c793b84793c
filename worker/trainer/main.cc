// tessera-trainer: one rank of a job. Spec in, events out.
//
//   tessera-trainer --input run.json                          prints its events
//   tessera-trainer --input input.pb --events FILE --commands FIFO
//   tessera-trainer --check --input run.json                  prints a CheckResult, trains nothing
//   tessera-trainer --rehearse --input run.json               prints a Rehearsal, likewise
//   tessera-trainer --plan --input request.json               prints a Plan of a PlanRequest
//   tessera-trainer --generate --input request.json           writes length-delimited
//   GenerateReplies tessera-trainer --export CHECKPOINT --to DIRECTORY        writes a Hugging Face
//   directory
//
// Exit codes: 0 finished, 1 failed (the last event says why), 2 wrong usage.
#include <ATen/Parallel.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <thread>

#include "proto/spec/bytes.h"
#include "proto/spec/threads.h"
#include "worker/errors.h"
#include "worker/memory/device_memory.h"
#include "worker/memory/report.h"
#include "worker/parallel/flight_recorder.h"
#include "worker/trainer/check.h"
#include "worker/trainer/export_checkpoint.h"
#include "worker/trainer/generate_text.h"
#include "worker/trainer/input.h"
#include "worker/trainer/plan_job.h"
#include "worker/trainer/rehearsal.h"
#include "worker/trainer/trainer.h"

namespace tessera {
namespace {

// Beyond resources.hang_timeout, until ranks give each other up: a hang is looked into before.
constexpr std::chrono::seconds kDiagnosisTime{10};

struct Flags {
  std::string input, events, commands;
  bool check = false;
  bool rehearse = false;
  bool plan = false;
  bool generate = false;
  ExportRequest to_export;
};

v1::Failure make_failure(v1::Failure::Kind kind, const std::string& message,
                         const std::string& field = "") {
  v1::Failure failure;
  failure.set_kind(kind);
  failure.set_message(message);
  failure.set_field(field);
  return failure;
}

// Of an allocation that was refused, with the ledger's table where it knows of it.
v1::Failure memory_failure(const std::string& message, const MemoryLedger& ledger) {
  const std::optional<MemoryRefusal> refusal = ledger.last_refusal();
  if (!refusal) return make_failure(v1::Failure::MEMORY, message);
  v1::Failure failure = make_failure(v1::Failure::MEMORY, describe(*refusal));
  *failure.mutable_out_of_memory() = out_of_memory(*refusal);
  return failure;
}

// The kind of the exception that is being handled. What the engine throws, and nothing else, is
// told apart.
v1::Failure current_failure(const MemoryLedger& ledger) {
  try {
    throw;
  } catch (const UserError& error) {
    return make_failure(v1::Failure::USER, error.what(), error.field());
  } catch (const NetworkError& error) {
    return make_failure(v1::Failure::NETWORK, error.what());
  } catch (const MemoryError& error) {
    return memory_failure(error.what(), ledger);
  } catch (const c10::OutOfMemoryError& error) {
    return memory_failure(error.what_without_backtrace(), ledger);
  } catch (const std::bad_alloc&) {
    return make_failure(v1::Failure::MEMORY, "out of host memory");
  } catch (const std::system_error& error) {
    // Only the user can make room; a restart would end the same way.
    if (error.code() == std::errc::no_space_on_device || error.code().value() == EDQUOT) {
      return make_failure(v1::Failure::USER, error.what(), "training.output_dir");
    }
    return make_failure(v1::Failure::DEVICE, error.what());
  } catch (const c10::Error& error) {
    return make_failure(v1::Failure::BUG, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return make_failure(v1::Failure::BUG, error.what());
  }
}

at::Device device_of(const v1::TrainerInput& input) {
  if (input.spec().resources().device() == "cuda") {
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(input.device_index()));
  }
  return at::kCPU;
}

// 0: what the device has.
int64_t device_limit(const v1::JobSpec& spec) {
  if (!spec.resources().has_device_memory()) return 0;
  return spec::parse_device_memory(spec.resources().device_memory()).value();
}

std::chrono::seconds hang_timeout(const v1::TrainerInput& input) {
  return std::chrono::seconds(input.spec().resources().hang_timeout().seconds());
}

std::unique_ptr<World> connect(const v1::TrainerInput& input) {
  const int size = input.spec().parallelism().num_processes();
  if (size == 1) return make_single_world();
  RendezvousOptions options;
  options.address = input.rendezvous().address();
  options.port = input.rendezvous().port();
  options.listen_fd = input.rendezvous().listen_fd();
  options.rank = input.rank();
  options.size = size;
  options.timeout = hang_timeout(input) + kDiagnosisTime;
  if (input.spec().resources().device() == "cuda")
    return make_nccl_world(options, input.device_index());
  return make_cpu_world(options);
}

void set_threads(const v1::TrainerInput& input) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(
      spec::threads_of_rank(input.spec().resources(), input.local_world_size(), cores));
}

// Of this machine and user; beside the job's output where the environment names none.
std::filesystem::path cache_directory(const v1::JobSpec& spec) {
  for (const auto& [variable, below] :
       {std::pair("XDG_CACHE_HOME", "tessera"), std::pair("HOME", ".cache/tessera")}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value == '/') return std::filesystem::path(value) / below;
  }
  return std::filesystem::path(spec.training().output_dir()) / ".cache";
}

void name_cache_directory(v1::JobSpec& spec) {
  if (spec.data().has_cache_dir()) return;
  spec.mutable_data()->set_cache_dir(cache_directory(spec).string());
}

// Tells what this rank exchanged with the others last.
void tell_collectives(const FlightRecorder& recorder, int rank, EventWriter& events) {
  try {
    v1::TrainerEvent event;
    *event.mutable_collectives() = recorder.record();
    event.mutable_collectives()->set_rank(rank);
    events.write(std::move(event));
  } catch (const std::system_error& error) {
    // What else the rank does, or fails of, is not for this to decide.
    std::cerr << "cannot tell of collectives: " << error.what() << std::endl;
  }
}

// On a disk that takes no word more, the agent has only the exit code.
void report_failure(EventWriter& events, int rank, v1::Failure failure,
                    std::chrono::seconds patience = EventWriter::kPatience) {
  failure.set_rank(rank);
  if (failure.has_out_of_memory()) {
    failure.mutable_out_of_memory()->mutable_memory()->set_rank(rank);
  }
  v1::TrainerEvent event;
  *event.mutable_failed() = std::move(failure);
  std::cerr << "error: " << event.failed().message() << std::endl;
  try {
    events.write(event);
    events.flush(patience);
  } catch (const std::system_error& error) {
    std::cerr << "error: " << error.what() << std::endl;
  }
}

// Whatever the rank does meanwhile is not waited for: another attempt may begin.
[[noreturn]] void end_at_once(EventWriter& events, int rank, const std::string& why) {
  report_failure(events, rank, make_failure(v1::Failure::NETWORK, why), std::chrono::seconds(0));
  std::_Exit(1);
}

int train(const Flags& flags) {
  MemoryLedger& ledger = MemoryLedger::install();
  EventWriter events(flags.events);
  FlightRecorder recorder;
  int rank = 0;
  try {
    v1::TrainerInput input = read_trainer_input(flags.input);
    name_cache_directory(*input.mutable_spec());
    rank = input.rank();
    set_threads(input);
    const at::Device device = device_of(input);
    use_device(ledger, device, device_limit(input.spec()));
    const LeaseWatch lease_watch(Lease(input),
                                 [&](const std::string& why) { end_at_once(events, rank, why); });
    CommandReader commands(flags.commands, [&] { tell_collectives(recorder, rank, events); });
    const Mesh mesh(*connect(input), mesh_shape(input.spec().parallelism()));
    Trainer trainer(input, mesh, device, events, ledger, commands, recorder);
    v1::TrainerEvent event;
    *event.mutable_finished() = trainer.run();
    events.write(std::move(event));
    events.flush();
    return 0;
  } catch (const std::exception&) {
    v1::Failure failure = current_failure(ledger);
    if (failure.kind() == v1::Failure::NETWORK) tell_collectives(recorder, rank, events);
    report_failure(events, rank, std::move(failure));
    return 1;
  }
}

// As ProtoJSON. Returns the exit code.
int print(const google::protobuf::Message& message) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) return 1;
  std::cout << json << std::endl;
  return 0;
}

int check(const Flags& flags) {
  const MemoryLedger& ledger = MemoryLedger::install();
  v1::CheckResult result;
  try {
    v1::TrainerInput input = read_trainer_input(flags.input);
    name_cache_directory(*input.mutable_spec());
    result = check_job(input.spec(), {.ranks_per_machine = input.local_world_size()});
  } catch (const std::exception&) {
    *result.add_violations() = current_failure(ledger);
  }
  return print(result);
}

int plan(const Flags& flags) {
  const MemoryLedger& ledger = MemoryLedger::install();
  v1::Plan plan;
  try {
    v1::PlanRequest request = read_plan_request(flags.input);
    name_cache_directory(*request.mutable_spec());
    plan = plan_job(std::move(request));
  } catch (const std::exception&) {
    plan.Clear();
    *plan.mutable_failure() = current_failure(ledger);
  }
  return print(plan);
}

int run_rehearsal(const Flags& flags) {
  const MemoryLedger& ledger = MemoryLedger::install();
  try {
    v1::TrainerInput input = read_trainer_input(flags.input);
    name_cache_directory(*input.mutable_spec());
    RehearsalData data;
    return print(rehearse(input.spec(), data, {.ranks_per_machine = input.local_world_size()}));
  } catch (const std::exception&) {
    std::cerr << "error: " << current_failure(ledger).message() << std::endl;
    return 1;
  }
}

int generate(const Flags& flags) {
  const MemoryLedger& ledger = MemoryLedger::install();
  const auto write = [](const v1::GenerateReply& reply) {
    google::protobuf::util::SerializeDelimitedToOstream(reply, &std::cout);
    std::cout.flush();
  };
  try {
    generate_text(read_generate_request(flags.input), write);
  } catch (const std::exception&) {
    v1::GenerateReply reply;
    *reply.mutable_failure() = current_failure(ledger);
    write(reply);
  }
  return std::cout ? 0 : 1;
}

int run_export(const ExportRequest& request) {
  const MemoryLedger& ledger = MemoryLedger::install();
  try {
    export_checkpoint(request);
    return 0;
  } catch (const std::exception&) {
    std::cerr << "error: " << current_failure(ledger).message() << std::endl;
    return 1;
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  // A closed pipe and a file-size limit are errors of the call that met them, not the process's
  // end.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("One rank of a Tessera job: reads a TrainerInput, trains, reports events.");
  tessera::Flags flags;
  CLI::Option* input =
      app.add_option("--input", flags.input, "TrainerInput, binary or (NAME.json) ProtoJSON");
  app.add_option("--events", flags.events,
                 "file to append events to; default: ProtoJSON lines on stdout");
  app.add_option("--commands", flags.commands, "FIFO to read commands from");
  app.add_flag("--check", flags.check, "say what is wrong with the job, and train nothing");
  app.add_flag("--rehearse", flags.rehearse,
               "say what memory and work the job takes, and train nothing")
      ->excludes("--check");
  app.add_flag("--plan", flags.plan,
               "of a PlanRequest: say what would make the job fit, and train nothing")
      ->excludes("--check")
      ->excludes("--rehearse");
  app.add_flag("--generate", flags.generate,
               "of a GenerateRequest: make completions, and train nothing")
      ->excludes("--check")
      ->excludes("--rehearse")
      ->excludes("--plan");
  CLI::Option* to_export = app.add_option("--export", flags.to_export.checkpoint,
                                          "checkpoint to write as a Hugging Face directory")
                               ->excludes(input);
  app.add_option("--to", flags.to_export.directory, "that directory")->needs(to_export);
  app.add_option("--model", flags.to_export.model,
                 "with --export: directory of config and tokenizer; default: the job's")
      ->needs(to_export);
  app.add_option("--dtype", flags.to_export.dtype, "with --export: type of the weights")
      ->needs(to_export)
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.callback([&] {
    if (flags.to_export.checkpoint.empty() == flags.input.empty())
      throw CLI::RequiredError("one of --input and --export");
    if (to_export->count() > 0 && flags.to_export.directory.empty())
      throw CLI::RequiredError("--to");
  });
  CLI11_PARSE(app, argc, argv);
  if (to_export->count() > 0) return tessera::run_export(flags.to_export);
  if (flags.rehearse) return tessera::run_rehearsal(flags);
  if (flags.plan) return tessera::plan(flags);
  if (flags.generate) return tessera::generate(flags);
  return flags.check ? tessera::check(flags) : tessera::train(flags);
}
