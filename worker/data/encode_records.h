// Records into tokens: by several threads, in the order of the files, in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "worker/data/example_encoders.h"
#include "worker/data/record_reader.h"

namespace tessera {

struct EncodeOptions {
  int num_threads = 0;     // 0: as many as the machine has cores
  int64_t vocab_size = 0;  // ids must be below it; 0: not checked
};

// Takes the next document. Returns whether to go on. Called by one thread at a time.
using ExampleSink = std::function<bool(const ExampleDocument& document)>;

// Hands all documents of the files to `sink`, in order. At most a few blocks a thread are held at a
// time. Whatever the threads do, the error thrown is the first one in the order of the files, and
// all documents before it were handed out. The tokenizer names tokens in errors; null only where
// ids are not checked. Throws UserError, and what `sink` throws.
void encode_records(std::span<const RecordFile> files, const ExampleFormat& format,
                    const Tokenizer* tokenizer, const EncodeOptions& options,
                    const ExampleSink& sink);

}  // namespace tessera
