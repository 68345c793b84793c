#include "worker/data/prompt_records.h"

#include <nlohmann/json.hpp>

#include "worker/data/data_files.h"

namespace tessera {

PromptRecords::PromptRecords(const DatasetOptions& options) {
  for (const DataSource& source : options.sources) {
    for (const RecordFile& file : find_data_files(source.paths, source.field)) {
      const auto records = open_records(file);
      while (const auto block = records->next_block()) {
        options.reports.alive();
        while (const Record* record = block->next()) {
          text_ += record->object().dump();
          ends_.push_back(text_.size());
        }
      }
    }
  }
}

}  // namespace tessera
