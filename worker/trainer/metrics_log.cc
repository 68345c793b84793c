#include "worker/trainer/metrics_log.h"

#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace tessera {

void MetricsLog::add(const v1::TrainerEvent& event) {
  std::ostringstream stream;
  google::protobuf::util::SerializeDelimitedToOstream(event, &stream);
  events_.push_back(std::move(stream).str());
  num_bytes_ += events_.back().size();
  while (num_bytes_ > kMaxBytes) {
    num_bytes_ -= events_.front().size();
    events_.pop_front();
  }
}

std::string MetricsLog::bytes() const {
  std::string all;
  all.reserve(num_bytes_);
  for (const std::string& event : events_) all += event;
  return all;
}

std::vector<v1::TrainerEvent> MetricsLog::take_up(const std::filesystem::path& checkpoint) {
  std::string bytes(kMaxBytes, '\0');
  std::ifstream file(checkpoint / kMetricsLogFile, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(file.gcount()));
  std::vector<v1::TrainerEvent> events;
  v1::TrainerEvent event;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&event, &stream, nullptr) &&
         (event.has_step() || event.has_eval())) {
    add(event);
    events.push_back(std::exchange(event, {}));
  }
  return events;
}

}  // namespace tessera
