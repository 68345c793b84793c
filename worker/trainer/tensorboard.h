// TensorBoard event files: a run's metrics under the names that TRL gives them.
//
// Source: the record format of tensorflow/core/lib/io/record_writer.h: length (8 bytes), its masked
// CRC32C, the serialised event, its masked CRC32C, all little-endian.
#pragma once

#include <google/protobuf/message.h>

#include <filesystem>

#include "tessera/v1/telemetry.pb.h"
#include "tessera/v1/tensorboard.pb.h"

namespace tessera {

// Writes each event as it comes, whole. Used by one thread.
class TensorBoardWriter {
 public:
  // Begins a new file in `directory`, which is made if need be. Where steps up to `resumed_step`
  // were made by an earlier attempt, later ones in its files are declared void. Throws
  // std::system_error.
  TensorBoardWriter(const std::filesystem::path& directory, int resumed_step);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // train/loss, train/grad_norm ... and train/time/forward_seconds ...: every number of the
  // message.
  void step(const v1::StepMetrics& metrics);
  // eval/loss, eval/runtime ...
  void evaluated(const v1::EvalMetrics& metrics);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(v1::TensorBoardEvent event);

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace tessera
