#include "worker/trainer/tensorboard.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// What the files that TensorBoard lists are called, and no other file of the run.
std::string file_name() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const auto seconds = static_cast<int64_t>(now_seconds());
  return "events.out.tfevents." + std::to_string(seconds) + "." + host + "." +
         std::to_string(::getpid()) + ".0";
}

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}

// Castagnoli's CRC of `data`, as the record format masks it.
uint32_t masked_crc32c(std::string_view data) {
  static constexpr auto kTable = make_crc_table();
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  crc = ~crc;
  return std::rotr(crc, 15) + 0xa282ead8;
}

std::string bytes_of(const auto& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// transformers' name of a metric, where it is another.
std::string metric_name(const FieldDescriptor& field, const std::string& prefix) {
  if (field.name() == "epoch") return "train/epoch";
  return prefix + (prefix == "eval/" && field.name() == "seconds" ? "runtime" : field.name());
}

// Single numbers that are given, at any depth. A step is where they stand, not one of them.
void add_values(const Message& message, const std::string& prefix, v1::TensorBoardSummary& out) {
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated() || field.name() == "step" || field.name() == "total_steps") continue;
    if (field.has_presence() && !reflection.HasField(message, &field)) continue;
    double value = 0;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        add_values(reflection.GetMessage(message, &field), prefix + field.name() + "/", out);
        continue;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        value = reflection.GetDouble(message, &field);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        value = static_cast<double>(reflection.GetInt64(message, &field));
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        value = reflection.GetInt32(message, &field);
        break;
      default:
        continue;
    }
    v1::TensorBoardSummary::Value& added = *out.add_value();
    added.set_tag(metric_name(field, prefix));
    added.set_simple_value(static_cast<float>(value));
  }
}

void add_metrics(const google::protobuf::Map<std::string, double>& metrics,
                 const std::string& prefix, v1::TensorBoardSummary& out) {
  for (const auto& [name, value] : metrics) {
    v1::TensorBoardSummary::Value& added = *out.add_value();
    added.set_tag(prefix + name);
    added.set_simple_value(static_cast<float>(value));
  }
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, int resumed_step) {
  std::filesystem::create_directories(directory);
  path_ = directory / file_name();
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path_.string());
  v1::TensorBoardEvent version;
  version.set_file_version("brain.Event:2");
  write(std::move(version));
  v1::TensorBoardEvent start;
  start.set_step(resumed_step + 1);
  start.mutable_session_log()->set_status(v1::TensorBoardSessionLog::START);
  write(std::move(start));
}

TensorBoardWriter::~TensorBoardWriter() { ::close(fd_); }

void TensorBoardWriter::step(const v1::StepMetrics& metrics) {
  v1::TensorBoardEvent event;
  event.set_step(metrics.step());
  add_values(metrics, "train/", *event.mutable_summary());
  add_metrics(metrics.metrics(), "train/", *event.mutable_summary());
  write(std::move(event));
}

void TensorBoardWriter::evaluated(const v1::EvalMetrics& metrics) {
  v1::TensorBoardEvent event;
  event.set_step(metrics.step());
  add_values(metrics, "eval/", *event.mutable_summary());
  add_metrics(metrics.metrics(), "eval/", *event.mutable_summary());
  write(std::move(event));
}

void TensorBoardWriter::write(v1::TensorBoardEvent event) {
  event.set_wall_time(now_seconds());
  const std::string body = event.SerializeAsString();
  const std::string length = bytes_of(static_cast<uint64_t>(body.size()));
  const std::string record =
      length + bytes_of(masked_crc32c(length)) + body + bytes_of(masked_crc32c(body));
  for (size_t done = 0; done < record.size();) {
    const ssize_t count = ::write(fd_, record.data() + done, record.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), path_.string());
    done += static_cast<size_t>(count);
  }
}

}  // namespace tessera
