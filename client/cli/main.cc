// tessera: the command line. Flags, environment and wiring only.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/export.h"
#include "client/cli/generate.h"
#include "client/cli/inspect.h"
#include "client/cli/observe.h"
#include "client/cli/plan.h"
#include "client/cli/profile.h"
#include "client/cli/queue.h"
#include "client/cli/signals.h"
#include "client/cli/token.h"
#include "client/cli/tools.h"
#include "client/cli/up.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kFooter[] =
    "Exit codes: 0 the job SUCCEEDED, or the command was done; 1 the job FAILED, or the export "
    "did,\nor doctor found a problem;\n"
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

// Where a rank keeps tokenised documents. Empty where no variable tells.
fs::path default_cache_dir() {
  if (const fs::path xdg = environment("XDG_CACHE_HOME"); xdg.is_absolute()) return xdg / "tessera";
  const fs::path home = environment("HOME");
  return home.is_absolute() ? home / ".cache/tessera" : fs::path();
}

Terminal make_terminal() {
  Terminal terminal{.out = std::cout, .err = std::cerr};
  terminal.out_is_tty = isatty(STDOUT_FILENO) != 0;
  terminal.colour = terminal.out_is_tty && environment("NO_COLOR").empty();
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.width = size.ws_col;
  return terminal;
}

struct Flags {
  std::string address;
  std::string state_dir;
  std::string ca;
  std::string token_file;
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
  ProjectChange project;
  PlanCommand plan;
  TokenOptions token;
  TraceCommand trace;
  Tools tools;
};

// Which service, and as whom.
void add_service(CLI::App& app, Flags& flags) {
  app.add_option(
      "--address", flags.address,
      "The service: unix:PATH or HOST:PORT, with commas between those of several coordinators "
      "[TESSERA_ADDRESS]; default: the one of the state directory");
  app.add_option("--ca", flags.ca,
                 "Authority of the service's certificate, STATE_DIR/tls/ca.pem of its machine "
                 "[TESSERA_CA]; goes with --address HOST:PORT");
  app.add_option("--token-file", flags.token_file,
                 "File of a token, as `tessera token create` prints it [TESSERA_TOKEN_FILE]; goes "
                 "with --address");
  app.add_option("--state-dir", flags.state_dir,
                 "Where a service of this machine keeps its state [TESSERA_STATE_DIR]")
      ->capture_default_str();
}

void add_up(CLI::App& app, Flags& flags) {
  CLI::App* up = app.add_subcommand("up", "Run the service on this machine until Ctrl-C");
  up->add_option("--http", flags.up.http, "HOST:PORT of the dashboard and /metrics; port 0: any")
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
  generate->add_option_function<std::string>(
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

void add_token(CLI::App& app, Flags& flags) {
  CLI::App* token = app.add_subcommand("token", "Say who may call the service");
  token->require_subcommand(1);
  CLI::App* create = token->add_subcommand(
      "create", "Print a new token: of a user, or of role agent to enrol one agent with");
  create->add_option("--role", flags.token.role, "viewer, submitter, operator or agent")
      ->required();
  create->add_option("--project", flags.token.projects,
                     "Of viewer and submitter: jobs of this project alone; may be given several "
                     "times; default: all");
  create->add_option("--node", flags.token.node,
                     "Of agent: for this node alone, whose certificate it replaces; default: any "
                     "node that has none");
  create->add_option("--expires", flags.token.expires, "As in 90s, 30m, 1h or 30d, at most 366d")
      ->capture_default_str();
  create->add_option("--description", flags.token.description, "For `tessera token list`");
  token->add_subcommand("list", "List tokens, and certificates of agents, newest first");
  CLI::App* revoke = token->add_subcommand("revoke", "End a token or a certificate now");
  revoke->add_option("ID", flags.id, "As `tessera token list` has it")->required();
}

void add_queue(CLI::App& app, Flags& flags) {
  CLI::App* queue = app.add_subcommand("queue", "Show who waits for what, in order");
  queue->add_option("--limit", flags.limit, "Jobs to show at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  CLI::App* project =
      app.add_subcommand("project", "List projects with what they have; or set what one may have");
  project->add_option("PROJECT", flags.project.name, "The one to set");
  project->add_option("--weight", flags.project.weight,
                      "Its share of the sum of all weights; a new project's: 1");
  project->add_option("--max-devices", flags.project.max_devices,
                      "Devices that it may hold at a time; -1: no bound");
  project->add_option("--max-queued", flags.project.max_queued,
                      "Jobs that it may have in the queue; -1: no bound");
}

void add_observe(CLI::App& app, Flags& flags) {
  TraceCommand& trace = flags.trace;
  CLI::App* command = app.add_subcommand(
      "trace", "Have a running job write Chrome traces of its next steps, and print their paths");
  command->add_option("JOB", trace.id, "The job's id, or its name")->required();
  command->add_option("--steps", trace.num_steps, "Steps to trace")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--step", trace.first_step, "The first of them; default: the next")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--ranks", trace.ranks, "As in 0,1; default: all")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20));
  command->add_flag("--no-wait", trace.no_wait, "Do not wait until they are there");
  CLI::App* collectives = app.add_subcommand(
      "collectives", "Show what each rank of a job exchanged last, and who waits for whom");
  collectives->add_option("JOB", flags.id, "The job's id, or its name")->required();
  collectives->add_option("--rank", flags.rank, "The last exchanges of this rank");
}

void add_commands(CLI::App& app, Flags& flags) {
  add_up(app, flags);
  add_token(app, flags);
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
  add_job_command("suspend", "Stop a job at a checkpoint, and keep it until `resume`");
  add_job_command("resume", "Queue a suspended job again");
  add_observe(app, flags);
  add_queue(app, flags);
  CLI::App* logs = add_job_command("logs", "Print a job's log lines");
  logs->add_flag("--follow,-f", flags.follow, "Wait for more until the job ends");
  logs->add_option("--rank", flags.rank, "Only lines of this rank");
  add_export(app, flags);
  add_generate(app, flags);
  add_tools(app, flags.tools);
  app.add_subcommand("nodes", "List machines and their devices");
  app.add_subcommand("version", "Print the version");
}

ExitCode dispatch_token(const std::string& command, const Session& session, const Flags& flags) {
  if (command == "create") return create_token(session, flags.token);
  if (command == "list") return list_tokens(session);
  return revoke_token(session, flags.id);
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
  if (command == "cancel") return change_job(session, flags.id, &Client::cancel);
  if (command == "suspend") return change_job(session, flags.id, &Client::suspend);
  if (command == "resume") return change_job(session, flags.id, &Client::resume);
  if (command == "trace") return trace_job(session, flags.trace);
  if (command == "collectives") return show_collectives(session, flags.id, flags.rank);
  if (command == "queue") return show_queue(session, static_cast<int>(flags.limit));
  if (command == "project") {
    return flags.project.name.empty() ? list_projects(session)
                                      : set_project(session, flags.project);
  }
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

ToolContext tool_context(const Flags& flags, const fs::path& programs, const fs::path& state_dir) {
  const std::string address = flags.address.empty() ? StateDir(state_dir).address() : flags.address;
  return {.version = TESSERA_VERSION,
          .programs = programs,
          .state_dir = state_dir,
          .cache_dir = default_cache_dir(),
          .given_address = flags.address,
          .connect =
              [address, options = ConnectOptions{.ca = flags.ca, .token_file = flags.token_file}] {
                return Client::connect(address, {}, options);
              },
          .json = flags.json};
}

int run(int argc, char** argv) {
  const Terminal terminal = make_terminal();
  Flags flags{.address = environment("TESSERA_ADDRESS"),
              .state_dir = default_state_dir().string(),
              .ca = environment("TESSERA_CA"),
              .token_file = environment("TESSERA_TOKEN_FILE")};
  CLI::App app{"Post-training of language models, on this machine or on many", "tessera"};
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  add_service(app, flags);
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
  const fs::path state_dir =
      flags.state_dir.empty() ? "" : fs::absolute(flags.state_dir).lexically_normal();
  if (const auto code =
          run_tool(app, flags.tools, tool_context(flags, programs, state_dir), terminal))
    return *code;
  if (flags.state_dir.empty() && flags.address.empty()) {
    print_errors(terminal, {"there is no home directory to keep state in; give --state-dir"});
    return kUsage;
  }
  const Signals signals;
  const bool own_dir = app.count("--state-dir") > 0;
  const bool own_address = app.count("--address") > 0;
  const Session session{
      .terminal = terminal,
      .stop = signals.token(),
      .dir = StateDir(state_dir),
      .given_address = flags.address,
      .json = flags.json,
      .programs = programs,
      .flags =
          absl::StrCat(own_dir ? " --state-dir " + flags.state_dir : "",
                       own_address ? " --address " + flags.address : "",
                       app.count("--ca") > 0 ? " --ca " + flags.ca : "",
                       app.count("--token-file") > 0 ? " --token-file " + flags.token_file : ""),
      .connect_options = {.ca = flags.ca, .token_file = flags.token_file}};
  const CLI::App* command = app.get_subcommands().front();
  if (command->get_name() == "token") {
    return dispatch_token(command->get_subcommands().front()->get_name(), session, flags);
  }
  return dispatch(command->get_name(), session, flags);
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) { return tessera::cli::run(argc, argv); }
