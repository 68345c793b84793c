#include "client/cli/data_program.h"

#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/answer.h"
#include "client/cpp/job_file.h"
#include "proto/spec/rules.h"

namespace tessera::cli {

namespace fs = std::filesystem;

namespace {

// Requires the name of one.
void set_method(const std::string& name, v1::Method& method) {
  const auto* field = v1::Method::descriptor()->FindFieldByName(name);
  method.GetReflection()->MutableMessage(&method, field);
}

}  // namespace

bool is_job_file(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".yaml" || extension == ".yml" || extension == ".json";
}

std::optional<v1::JobSpec> read_data_target(const Terminal& terminal, const DataTarget& target) {
  v1::JobSpec spec;
  if (is_job_file(target.target)) {
    JobFile job = read_job_file(target.target);
    if (!job.errors.empty()) {
      print_errors(terminal, job.errors);
      return std::nullopt;
    }
    spec = std::move(job.spec);
  } else {
    spec.mutable_data()->add_train(fs::absolute(target.target).lexically_normal().string());
    set_method(target.method, *spec.mutable_method());
    spec.mutable_training();
    spec::fill_defaults(spec);
  }
  if (!target.model.empty()) {
    const std::string model = fs::absolute(target.model).lexically_normal().string();
    if (spec.model().path().empty()) spec.mutable_model()->set_path(model);
    spec.mutable_model()->set_tokenizer(model);
  }
  if (target.held_out && spec.data().eval().empty()) {
    print_errors(terminal, {absl::StrCat("--eval: ", target.target, " has no data.eval")});
    return std::nullopt;
  }
  return spec;
}

std::string name_flag(const v1::JobSpec& spec, const std::string& mistake) {
  absl::string_view rest = mistake;
  if (!spec.model().path().empty() || !absl::ConsumePrefix(&rest, "model.path: ")) return mistake;
  return absl::StrCat(rest, "; --model DIR names the directory of a model that has one");
}

ExitCode run_data_program(const Session& session, const v1::InspectRequest& request,
                          const std::function<void(const v1::InspectReply&)>& take) {
  ExitCode code = kSucceeded;
  const auto take_one = [&](const v1::InspectReply& reply) {
    if (!reply.has_failure()) return take(reply);
    const v1::Failure& failure = reply.failure();
    print_errors(
        session.terminal,
        {failure.field().empty()
             ? failure.message()
             : name_flag(request.spec(), absl::StrCat(failure.field(), ": ", failure.message()))});
    code = kUsage;
  };
  bool is_clean_end = false;
  const absl::Status status =
      run_for_answer({.program = session.programs / "tessera-data"}, request, session.stop,
                     [&](google::protobuf::io::ZeroCopyInputStream& stream) {
                       v1::InspectReply reply;
                       while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(
                           &reply, &stream, &is_clean_end)) {
                         take_one(reply);
                         reply.Clear();
                       }
                     });
  session.terminal.out.flush();
  if (session.stop.stop_requested()) return kInterrupted;
  if (status.ok() && is_clean_end) return code;
  print_errors(session.terminal, {status.ok() ? "tessera-data wrote what is no reply"
                                              : std::string(status.message())});
  return kJobFailed;
}

}  // namespace tessera::cli
