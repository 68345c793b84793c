// tessera: the command line. Flags, environment and wiring only.
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/export.h"
#include "client/cli/generate.h"
#include "client/cli/inspect.h"
#include "client/cli/plan.h"
#include "client/cli/profile.h"
#include "client/cli/up.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kFooter[] =
    "Exit codes: 0 the job SUCCEEDED, or the command was done; 1 the job FAILED, or the export "
    "did;\n"
    "2 usage, a bad job file, a file of --events that cannot be written, or a request that was\n"
    "refused; 3 the job was CANCELLED; 4 the service cannot be reached; 130 interrupted, the job\n"
    "goes on.";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Empty where no variable tells.
fs::path default_state_dir() {
  if (const std::string own = environment("TESSERA_STATE_DIR"); !own.empty()) return own;
  // XDG: a relative path there is to be ignored.
  if (const fs::path xdg = environment("XDG_STATE_HOME"); xdg.is_absolute()) return xdg / "tessera";
  if (const fs::path home = environment("HOME"); home.is_absolute()) {
    return home / ".local/state/tessera";
  }
  return {};
}

Terminal make_terminal() {
  Terminal terminal{.out = std::cout, .err = std::cerr};
  terminal.out_is_tty = isatty(STDOUT_FILENO) != 0;
  terminal.colour = terminal.out_is_tty && environment("NO_COLOR").empty();
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.width = size.ws_col;
  return terminal;
}

// Turns the signals that end a program into a stop request. Blocks them for all threads: make it
// before anything starts one. A second signal while the first is still being answered ends the
// process.
class Signals {
 public:
  Signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread([signals, source = source_]() mutable {
      int signal = 0;
      sigwait(&signals, &signal);
      source.request_stop();
      sigwait(&signals, &signal);
      _exit(128 + signal);
    }).detach();
  }

  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
};

struct Flags {
  std::string address;
  std::string state_dir;
  bool json = false;
  std::string job_file;
  std::string id;
  std::vector<std::string> states;
  size_t limit = 50;
  bool follow = false;
  std::optional<int> rank;
  std::string trainer;
  std::string events;
  UpOptions up;
  ExportOptions to_export;
  GenerateCommand generate;
  InspectOptions inspect;
  ProfileCommand profile;
  PlanCommand plan;
};

void add_up(CLI::App& app, Flags& flags) {
  CLI::App* up = app.add_subcommand("up", "Run the service on this machine until Ctrl-C");
  up->add_option("--http", flags.up.http, "HOST:PORT of the status page and /metrics; port 0: any")
      ->capture_default_str();
  up->add_option("--node", flags.up.node, "Name of this machine; default: its host name");
  up->add_option("--cpu-slots", flags.up.cpu_slots, "Ranks that may run on CPU at a time")
      ->check(CLI::Range(1, 4096));
  up->add_option("--trainer", flags.trainer, "The trainer program; default: beside this one");
  up->add_flag("--exit-when-idle", flags.up.exit_when_idle,
               "End once no job is unfinished and no client is at work");
}

void add_export(CLI::App& app, Flags& flags) {
  CLI::App* to_export =
      app.add_subcommand("export", "Write a checkpoint as a Hugging Face directory");
  to_export
      ->add_option("CHECKPOINT", flags.to_export.checkpoint,
                   "A checkpoint-STEP directory, or one that holds some: the newest")
      ->required();
  to_export->add_option("DIRECTORY", flags.to_export.directory, "Replaced where there is one")
      ->required();
  to_export->add_option("--model", flags.to_export.model,
                        "Directory of config and tokenizer; default: where the job had them");
  to_export->add_option("--dtype", flags.to_export.dtype, "Type of the weights; default: the job's")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  to_export->add_option("--trainer", flags.trainer,
                        "The trainer program; default: beside this one");
}

// A field of a message, set by the flag that it is named by.
template <typename Value, typename Message>
CLI::Option* add_field(CLI::App& command, const std::string& flag, Message& message,
                       void (Message::*set)(Value), const std::string& what) {
  return command.add_option_function<Value>(
      flag, [&message, set](const Value& value) { (message.*set)(value); }, what);
}

void add_generate(CLI::App& app, Flags& flags) {
  CLI::App* generate =
      app.add_subcommand("generate", "Print what a model says: to try it after training");
  v1::GenerateRequest& request = flags.generate.request;
  v1::Sampling& sampling = *request.mutable_sampling();
  generate
      ->add_option_function<std::string>(
          "CHECKPOINT", [&request](const std::string& path) { request.set_model(path); },
          "A Hugging Face directory, one of adapters, a checkpoint-STEP directory, or one that "
          "holds some: the newest");
  generate->add_option_function<std::string>(
      "--job", [&request](const std::string& job) { request.set_job(job); },
      "In place of CHECKPOINT: what this job of the service has left");
  generate->add_option("--prompt,-p", flags.generate.prompts,
                       "May be given several times; default: all of standard input");
  CLI::Option* chat = generate->add_flag("--chat", flags.generate.is_chat,
                                         "Prompts are what a user says; the chat template asks "
                                         "for an answer");
  generate->add_option("--system", flags.generate.system, "With --chat: said before")->needs(chat);
  add_field(*generate, "--completions,-n", sampling, &v1::Sampling::set_num_completions,
            "Of each prompt; default: 1");
  add_field(*generate, "--max-new-tokens", sampling, &v1::Sampling::set_max_new_tokens,
            "Tokens of a completion at most; default: 256");
  add_field(*generate, "--temperature", sampling, &v1::Sampling::set_temperature,
            "0: the most likely token, always; default: 1");
  add_field(*generate, "--top-k", sampling, &v1::Sampling::set_top_k,
            "Only so many of the most likely tokens");
  add_field(*generate, "--top-p", sampling, &v1::Sampling::set_top_p,
            "Only the most likely tokens that have this probability together");
  add_field(*generate, "--min-p", sampling, &v1::Sampling::set_min_p,
            "Only tokens at least this share as likely as the likeliest");
  add_field(*generate, "--repetition-penalty", sampling, &v1::Sampling::set_repetition_penalty,
            "Above 1: tokens that occurred become less likely");
  add_field(*generate, "--seed", sampling, &v1::Sampling::set_seed, "Of random draws; default: 0");
  generate->add_option_function<std::vector<std::string>>(
      "--stop",
      [&sampling](const std::vector<std::string>& texts) {
        *sampling.mutable_stop_strings() = {texts.begin(), texts.end()};
      },
      "Text that ends a completion; may be given several times");
  generate->add_option_function<std::string>(
      "--tokenizer", [&request](const std::string& path) { request.set_tokenizer(path); },
      "Directory of another tokenizer than the model's");
  generate->add_option_function<std::string>(
      "--device", [&request](const std::string& device) { request.set_device(device); },
      "cpu or cuda; default: cpu");
  generate->add_option_function<std::string>(
      "--dtype", [&request](const std::string& dtype) { request.set_dtype(dtype); },
      "float32 or bfloat16; default: float32 on a CPU");
  generate->add_flag_callback(
      "--logprobs", [&request] { request.set_logprobs(true); },
      "With --json: tokens and their log-probabilities");
  generate->add_option("--trainer", flags.trainer, "The trainer program; default: beside this one");
}

void add_method(CLI::App& command, DataTarget& target) {
  command
      .add_option("--method", target.method, "Whose records data holds, where there is no job file")
      ->capture_default_str()
      ->check(CLI::IsMember({"sft", "dpo", "kto", "reward", "gkd"}));
}

void add_data(CLI::App& app, Flags& flags) {
  CLI::App* data = app.add_subcommand("data", "Look at documents");
  data->require_subcommand(1);
  CLI::App* inspect = data->add_subcommand(
      "inspect", "Show rows as a model will see them, and what of them the loss counts");
  inspect
      ->add_option("JOB_OR_DATA", flags.inspect.data.target,
                   "A job file (.yaml, .yml, .json); or a file, directory or pattern of data")
      ->required();
  inspect->add_option("--tokenizer", flags.inspect.data.model,
                      "Directory of a tokenizer: for data, or in place of the job's");
  inspect->add_flag("--eval", flags.inspect.data.held_out, "The documents of data.eval");
  add_method(*inspect, flags.inspect.data);
  inspect->add_option("--rows", flags.inspect.rows, "Rows to show")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  inspect->add_option("--first", flags.inspect.first_row, "The first of them; rows count from 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  inspect
      ->add_option("--documents", flags.inspect.documents,
                   "Documents to read of each source; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
}

void add_profile(CLI::App& app, Flags& flags) {
  CLI::App* profile = app.add_subcommand(
      "profile", "Show how long documents are, and which max_length and packing fit them");
  profile
      ->add_option("JOB_OR_DATA", flags.profile.data.target,
                   "A job file (.yaml, .yml, .json); or a file, directory or pattern of data")
      ->required();
  profile->add_option("--model,--tokenizer", flags.profile.data.model,
                      "Directory of a model, for its tokenizer; data of input_ids needs none");
  profile->add_flag("--eval", flags.profile.data.held_out, "The documents of data.eval");
  add_method(*profile, flags.profile.data);
  profile
      ->add_option("--max-length", flags.profile.max_lengths,
                   "Look at this one, too; may be given several times")
      ->check(CLI::Range(1, 1 << 20));
  profile
      ->add_option("--batch-size", flags.profile.batch_rows,
                   "Rows of a microbatch; default: the job's")
      ->check(CLI::Range(1, 65536));
  profile
      ->add_option("--documents", flags.profile.documents,
                   "Documents to read of each source; default: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
}

void add_plan(CLI::App& app, Flags& flags) {
  CLI::App* plan =
      app.add_subcommand("plan", "Show the memory that a job needs, and what would make it less");
  plan->add_option("JOB_FILE", flags.plan.job_file, "YAML or JSON")->required();
  plan->add_option("--world-size", flags.plan.world_size, "As if on so many ranks")
      ->check(CLI::Range(1, 4096));
  plan->add_option("--device", flags.plan.device,
                   "As if on this device: cpu, cuda, or a model such as h100, h200, a100-80gb");
  plan->add_option("--device-memory", flags.plan.device_memory,
                   "Bytes of tensors that a rank may hold, as in 80GiB");
  plan->add_option("--trainer", flags.trainer, "The trainer program; default: beside this one");
}

void add_commands(CLI::App& app, Flags& flags) {
  add_up(app, flags);
  add_data(app, flags);
  add_profile(app, flags);
  add_plan(app, flags);
  CLI::App* run = app.add_subcommand(
      "run", "Run a job to its end, with a service of its own where none is running");
  run->add_option("JOB_FILE", flags.job_file, "YAML or JSON")->required();
  run->add_option("--trainer", flags.trainer, "The trainer program; default: beside this one");
  run->add_option("--events", flags.events,
                  "Write every event to this file too, as one ProtoJSON message a line");
  CLI::App* submit = app.add_subcommand("submit", "Queue a job and print its id");
  submit->add_option("JOB_FILE", flags.job_file, "YAML or JSON")->required();
  const auto add_job_command = [&](const char* name, const char* what) {
    CLI::App* command = app.add_subcommand(name, what);
    command->add_option("JOB", flags.id, "The job's id, or its name")->required();
    return command;
  };
  add_job_command("watch", "Follow a job to its end; exits as `run` does");
  CLI::App* list = app.add_subcommand("list", "List jobs, newest first");
  list->add_option("--state", flags.states, "Only jobs in this state; may be given several times");
  list->add_option("--limit", flags.limit, "Jobs to list at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  add_job_command("get", "Show a job");
  add_job_command("cancel", "Ask a job to stop");
  CLI::App* logs = add_job_command("logs", "Print a job's log lines");
  logs->add_flag("--follow,-f", flags.follow, "Wait for more until the job ends");
  logs->add_option("--rank", flags.rank, "Only lines of this rank");
  add_export(app, flags);
  add_generate(app, flags);
  app.add_subcommand("nodes", "List machines and their devices");
  app.add_subcommand("version", "Print the version");
}

ExitCode dispatch(const std::string& command, const Session& session, Flags& flags) {
  if (command == "up") {
    flags.up.programs = session.programs;
    flags.up.trainer = flags.trainer.empty() ? fs::path() : fs::absolute(flags.trainer);
    return run_up(session.dir, flags.up, session.terminal, session.stop);
  }
  if (command == "run") {
    const fs::path trainer = flags.trainer.empty() ? fs::path() : fs::absolute(flags.trainer);
    return run_job(session,
                   {.job_file = flags.job_file, .trainer = trainer, .events = flags.events});
  }
  if (command == "submit") return submit_job(session, flags.job_file);
  if (command == "watch") return watch_job(session, flags.id);
  if (command == "get") return get_job(session, flags.id);
  if (command == "cancel") return cancel_job(session, flags.id);
  if (command == "list") return list_jobs(session, flags.states, flags.limit);
  if (command == "logs") {
    return print_logs(session, {.id = flags.id, .follow = flags.follow, .rank = flags.rank});
  }
  if (command == "data") return inspect_data(session, flags.inspect);
  if (command == "plan") {
    flags.plan.trainer =
        flags.trainer.empty() ? session.programs / "tessera-trainer" : fs::absolute(flags.trainer);
    return plan_job(session, flags.plan);
  }
  if (command == "generate") {
    flags.generate.trainer =
        flags.trainer.empty() ? session.programs / "tessera-trainer" : fs::absolute(flags.trainer);
    return generate(session, flags.generate);
  }
  if (command == "profile") return profile_data(session, flags.profile);
  if (command == "nodes") return list_nodes(session);
  session.terminal.out << "tessera " << TESSERA_VERSION << '\n' << std::flush;
  return kSucceeded;
}

int run(int argc, char** argv) {
  const Terminal terminal = make_terminal();
  Flags flags{.address = environment("TESSERA_ADDRESS"), .state_dir = default_state_dir().string()};
  CLI::App app{"Post-training of language models, on this machine or on many", "tessera"};
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  app.add_option(
      "--address", flags.address,
      "The service: unix:PATH or a loopback HOST:PORT [TESSERA_ADDRESS]; default: the one "
      "of the state directory");
  app.add_option("--state-dir", flags.state_dir,
                 "Where a service of this machine keeps its state [TESSERA_STATE_DIR]")
      ->capture_default_str();
  app.add_flag("--json", flags.json, "One ProtoJSON message a line on stdout, and nothing else");
  add_commands(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    print_errors(terminal, {absl::StrCat(error.what(), "; see tessera --help")});
    return kUsage;
  }
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  if (app.got_subcommand("export")) {
    flags.to_export.trainer =
        flags.trainer.empty() ? programs / "tessera-trainer" : fs::path(flags.trainer);
    return export_checkpoint(terminal, flags.to_export);
  }
  if (flags.state_dir.empty() && flags.address.empty()) {
    print_errors(terminal, {"there is no home directory to keep state in; give --state-dir"});
    return kUsage;
  }
  const Signals signals;
  const bool own_dir = app.count("--state-dir") > 0;
  const bool own_address = app.count("--address") > 0;
  const Session session{.terminal = terminal,
                        .stop = signals.token(),
                        .dir = StateDir(fs::absolute(flags.state_dir).lexically_normal()),
                        .given_address = flags.address,
                        .json = flags.json,
                        .programs = programs,
                        .flags = absl::StrCat(own_dir ? " --state-dir " + flags.state_dir : "",
                                              own_address ? " --address " + flags.address : "")};
  return dispatch(app.get_subcommands().front()->get_name(), session, flags);
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) { return tessera::cli::run(argc, argv); }
