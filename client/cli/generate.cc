#include "client/cli/generate.h"

#include <google/protobuf/util/delimited_message_util.h>

#include <iostream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/answer.h"
#include "client/cli/data_printer.h"
#include "client/cli/event_printer.h"
#include "client/cpp/client.h"

namespace tessera::cli {
namespace {

v1::GeneratePrompt prompt_of(const GenerateCommand& command, const std::string& text) {
  v1::GeneratePrompt prompt;
  if (!command.is_chat) {
    prompt.set_text(text);
    return prompt;
  }
  const auto say = [&](const char* role, const std::string& content) {
    v1::ChatMessage& message = *prompt.mutable_conversation()->add_messages();
    message.set_role(role);
    message.set_content(content);
  };
  if (!command.system.empty()) say("system", command.system);
  say("user", text);
  return prompt;
}

v1::GenerateRequest request_of(const GenerateCommand& command) {
  namespace fs = std::filesystem;
  v1::GenerateRequest request = command.request;
  const auto absolute = [](const std::string& path) {
    return fs::absolute(path).lexically_normal().string();
  };
  if (!request.model().empty()) request.set_model(absolute(request.model()));
  if (!request.tokenizer().empty()) request.set_tokenizer(absolute(request.tokenizer()));
  for (const std::string& text : command.prompts) *request.add_prompts() = prompt_of(command, text);
  if (!command.prompts.empty()) return request;
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  *request.add_prompts() = prompt_of(command, text);
  return request;
}

// Prints replies for people.
class CompletionPrinter {
 public:
  CompletionPrinter(const Terminal& terminal, const v1::GenerateRequest& request)
      : terminal_(terminal),
        num_completions_(
            request.sampling().has_num_completions() ? request.sampling().num_completions() : 1),
        is_alone_(request.prompts_size() * num_completions_ == 1) {}

  void print(const v1::GenerateReply& reply) {
    if (reply.has_text()) return text(reply.text());
    end(reply.end());
  }

 private:
  void text(const v1::GeneratedText& text) {
    if (is_alone_) {
      terminal_.out << shown(text.text()) << std::flush;
    } else {
      texts_[{text.prompt(), text.completion()}] += text.text();
    }
  }

  void end(const v1::GeneratedEnd& end) {
    if (!is_alone_) {
      const std::string heading =
          absl::StrCat("prompt ", end.prompt() + 1, ", completion ", end.completion() + 1, " (",
                       end.num_tokens(), " tokens, ", end.finish_reason(), "):");
      const auto text = texts_.extract({end.prompt(), end.completion()});
      terminal_.out << terminal_.paint(heading, "1") << '\n'
                    << (text.empty() ? "" : shown(text.mapped())) << '\n';
    }
    terminal_.out << '\n' << std::flush;
  }

  std::string shown(const std::string& text) const {
    return terminal_.out_is_tty ? without_controls(text) : text;
  }

  const Terminal& terminal_;
  const int num_completions_;
  const bool is_alone_;
  std::map<std::pair<int, int>, std::string> texts_;  // of prompt and completion, as far as made
};

// Its own failure, where it ended with one.
absl::Status generate_here(const Session& session, const GenerateCommand& command,
                           const v1::GenerateRequest& request,
                           const std::function<void(const v1::GenerateReply&)>& take) {
  v1::Failure failure;
  bool is_clean_end = false;
  const absl::Status status = run_for_answer(
      {.program = command.trainer, .arguments = {"--generate", "--input", "/dev/stdin"}}, request,
      session.stop, [&](google::protobuf::io::ZeroCopyInputStream& stream) {
        v1::GenerateReply reply;
        while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&reply, &stream,
                                                                        &is_clean_end)) {
          if (reply.has_failure()) {
            failure = reply.failure();
          } else {
            take(reply);
          }
          reply.Clear();
        }
      });
  if (failure.kind() == v1::Failure::USER) return absl::InvalidArgumentError(failure.message());
  if (!failure.message().empty()) return absl::InternalError(failure.message());
  if (!status.ok()) return status;
  return is_clean_end ? absl::OkStatus() : absl::InternalError("the trainer ended in mid-reply");
}

}  // namespace

ExitCode generate(const Session& session, const GenerateCommand& command) {
  if (command.request.model().empty() == command.request.job().empty()) {
    print_errors(session.terminal, {"give either CHECKPOINT or --job JOB"});
    return kUsage;
  }
  const v1::GenerateRequest request = request_of(command);
  CompletionPrinter printer(session.terminal, request);
  const auto take = [&](const v1::GenerateReply& reply) {
    if (!session.json) return printer.print(reply);
    session.terminal.out << to_json(reply) << '\n' << std::flush;
  };
  const bool is_served = !request.job().empty();
  absl::Status status;
  if (is_served) {
    auto client = session.connect();
    status = client.ok() ? client->generate(request, take, session.stop) : client.status();
  } else {
    status = generate_here(session, command, request, take);
  }
  if (session.stop.stop_requested()) return kInterrupted;
  if (status.ok()) return kSucceeded;
  if (is_served) return report_failure(session.terminal, status, session.address());
  print_errors(session.terminal, {std::string(status.message())});
  return absl::IsInvalidArgument(status) ? kUsage : kJobFailed;
}

}  // namespace tessera::cli
