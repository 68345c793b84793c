// Goes through a file of records as formats of data do.
#pragma once

#include <nlohmann/json.hpp>

#include "worker/data/record_reader.h"

namespace tessera::fuzz {

inline void read_record(const Record& record) {
  record.place();
  record.object();
  for (const char* field : {"text", "messages", "prompt", "input_ids"}) {
    if (record.is_string(field)) record.string(field);
    if (record.has(field)) record.json(field);
  }
}

inline void read_records(RecordReader& reader) {
  while (const auto block = reader.next_block()) {
    while (const Record* record = block->next()) read_record(*record);
  }
}

}  // namespace tessera::fuzz
