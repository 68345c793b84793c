#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "worker/data/parquet_module.h"
#include "worker/data/utf8.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxBlockRows = 1024;
constexpr int kMaxDepth = 64;

// Where a value is held: dictionaries and extension types only point at it.
struct Place {
  const arrow::Array* array;
  int64_t index;
};

Place storage_of(Place place) {
  while (true) {
    if (place.array->type_id() == arrow::Type::DICTIONARY) {
      const auto& encoded = static_cast<const arrow::DictionaryArray&>(*place.array);
      if (encoded.IsNull(place.index)) return place;
      place = {encoded.dictionary().get(), encoded.GetValueIndex(place.index)};
    } else if (place.array->type_id() == arrow::Type::EXTENSION) {
      place.array = static_cast<const arrow::ExtensionArray&>(*place.array).storage().get();
    } else {
      return place;
    }
  }
}

template <class Array>
std::string_view view_of(const Place& place) {
  return static_cast<const Array&>(*place.array).GetView(place.index);
}

// Requires a value that is not null.
std::optional<std::string_view> string_of(const Place& place) {
  switch (place.array->type_id()) {
    case arrow::Type::STRING:
      return view_of<arrow::StringArray>(place);
    case arrow::Type::LARGE_STRING:
      return view_of<arrow::LargeStringArray>(place);
    case arrow::Type::STRING_VIEW:
      return view_of<arrow::StringViewArray>(place);
    default:
      return std::nullopt;
  }
}

// Values as JSON. A member of a struct that is null stays null, as datasets gives it.
class JsonMaker {
 public:
  JsonMaker(const RecordFile& file, std::string place_of_row, std::string_view column)
      : file_(file), row_(std::move(place_of_row)), column_(column) {}

  ordered_json make(Place place, int depth = 0) const {
    place = storage_of(place);
    if (depth > kMaxDepth) refuse("is nested too deep");
    if (place.array->IsNull(place.index)) return nullptr;
    if (const auto text = string_of(place)) {
      if (!is_valid_utf8(*text)) refuse("is not valid UTF-8");
      return std::string(*text);
    }
    switch (place.array->type_id()) {
      case arrow::Type::STRUCT:
        return object(static_cast<const arrow::StructArray&>(*place.array), place.index, depth);
      case arrow::Type::LIST:
        return list<arrow::ListArray>(place, depth);
      case arrow::Type::LARGE_LIST:
        return list<arrow::LargeListArray>(place, depth);
      case arrow::Type::FIXED_SIZE_LIST:
        return list<arrow::FixedSizeListArray>(place, depth);
      default:
        return number(place);
    }
  }

 private:
  ordered_json object(const arrow::StructArray& array, int64_t index, int depth) const {
    ordered_json object = ordered_json::object();
    for (int i = 0; i < array.num_fields(); ++i) {
      object[array.struct_type()->field(i)->name()] =
          make({array.field(i).get(), index}, depth + 1);
    }
    return object;
  }

  template <class Array>
  ordered_json list(const Place& place, int depth) const {
    const auto& array = static_cast<const Array&>(*place.array);
    ordered_json list = ordered_json::array();
    const int64_t begin = array.value_offset(place.index);
    for (int64_t i = 0; i < array.value_length(place.index); ++i) {
      list.push_back(make({array.values().get(), begin + i}, depth + 1));
    }
    return list;
  }

  ordered_json number(const Place& place) const {
    const auto value = [&]<class Array>(const Array*) -> ordered_json {
      return static_cast<const Array&>(*place.array).Value(place.index);
    };
    switch (place.array->type_id()) {
      case arrow::Type::BOOL:
        return value(static_cast<arrow::BooleanArray*>(nullptr));
      case arrow::Type::INT8:
        return value(static_cast<arrow::Int8Array*>(nullptr));
      case arrow::Type::INT16:
        return value(static_cast<arrow::Int16Array*>(nullptr));
      case arrow::Type::INT32:
        return value(static_cast<arrow::Int32Array*>(nullptr));
      case arrow::Type::INT64:
        return value(static_cast<arrow::Int64Array*>(nullptr));
      case arrow::Type::UINT8:
        return value(static_cast<arrow::UInt8Array*>(nullptr));
      case arrow::Type::UINT16:
        return value(static_cast<arrow::UInt16Array*>(nullptr));
      case arrow::Type::UINT32:
        return value(static_cast<arrow::UInt32Array*>(nullptr));
      case arrow::Type::UINT64:
        return value(static_cast<arrow::UInt64Array*>(nullptr));
      case arrow::Type::FLOAT:
        return value(static_cast<arrow::FloatArray*>(nullptr));
      case arrow::Type::DOUBLE:
        return value(static_cast<arrow::DoubleArray*>(nullptr));
      default:
        refuse("holds " + place.array->type()->ToString() +
               ", which has no JSON form; use strings, numbers, lists and structs");
    }
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw UserError(file_.field, row_ + ": the field \"" + std::string(column_) + "\" " + problem);
  }

  const RecordFile& file_;
  const std::string row_;
  const std::string_view column_;
};

// Row by row over a batch.
class ParquetBlock final : public RecordBlock, private Record {
 public:
  ParquetBlock(RecordFile file, std::shared_ptr<arrow::RecordBatch> batch, int64_t first_row)
      : file_(std::move(file)), batch_(std::move(batch)), first_row_(first_row) {}

  const Record* next() override {
    if (row_ + 1 >= batch_->num_rows()) return nullptr;
    ++row_;
    return this;
  }

 private:
  bool has(std::string_view field) const override {
    const auto found = find(field);
    return found && !found->array->IsNull(found->index);
  }

  bool is_string(std::string_view field) const override {
    return has(field) && string_of(*find(field)).has_value();
  }

  std::string_view string(std::string_view field) const override {
    const Place found = at(field);
    std::optional<std::string_view> text;
    if (!found.array->IsNull(found.index)) text = string_of(found);
    if (!text) fail("the field \"" + std::string(field) + "\" is not a string");
    if (!is_valid_utf8(*text)) {
      fail("the field \"" + std::string(field) + "\" is not valid UTF-8");
    }
    return *text;
  }

  ordered_json json(std::string_view field) const override {
    return JsonMaker(file_, place(), field).make(at(field));
  }

  ordered_json object() const override {
    ordered_json all = ordered_json::object();
    for (const auto& column : batch_->schema()->fields()) {
      if (!has(column->name())) continue;
      try {
        all[column->name()] = json(column->name());
      } catch (const UserError&) {
        // It has no JSON form.
      }
    }
    return all;
  }

  std::string place() const override {
    return file_.path.string() + " row " + std::to_string(first_row_ + row_);
  }

  [[noreturn]] void fail(const std::string& problem) const override {
    throw UserError(file_.field, place() + ": " + problem);
  }

  std::optional<Place> find(std::string_view field) const {
    const auto& fields = batch_->schema()->fields();
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[i]->name() != field) continue;
      return storage_of({batch_->columns()[i].get(), row_});
    }
    return std::nullopt;
  }

  Place at(std::string_view field) const {
    const auto found = find(field);
    if (!found) fail("there is no field \"" + std::string(field) + "\"");
    return *found;
  }

  const RecordFile file_;
  const std::shared_ptr<arrow::RecordBatch> batch_;
  const int64_t first_row_;  // of the file, counted from 1
  int64_t row_ = -1;
};

class ParquetReader final : public RecordReader {
 public:
  explicit ParquetReader(const RecordFile& file) : file_(file) {
    // Pages are read as they are needed, not whole column chunks: those have the size of a row
    // group. The system's allocator gives memory back.
    parquet::ReaderProperties properties(arrow::system_memory_pool());
    properties.enable_buffered_stream();
    properties.set_page_checksum_verification(true);
    parquet::arrow::FileReaderBuilder builder;
    auto opened = arrow::io::ReadableFile::Open(file.path.string(), arrow::system_memory_pool());
    if (!opened.ok()) refuse(opened.status());
    check(builder.Open(*opened, properties));
    const auto metadata = builder.raw_reader()->metadata();
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_batch_size(rows_a_block(*metadata));
    check(builder.memory_pool(arrow::system_memory_pool())
              ->properties(arrow_properties)
              ->Build(&reader_));
    auto batches = reader_->GetRecordBatchReader();
    if (!batches.ok()) refuse(batches.status());
    batches_ = std::move(*batches);
  }

  std::unique_ptr<RecordBlock> next_block() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    check(batches_->ReadNext(&batch));
    if (batch == nullptr) return nullptr;
    const int64_t first_row = next_row_;
    next_row_ += batch->num_rows();
    return std::make_unique<ParquetBlock>(file_, std::move(batch), first_row);
  }

 private:
  static int64_t rows_a_block(const parquet::FileMetaData& metadata) {
    int64_t num_bytes = 0;
    for (int i = 0; i < metadata.num_row_groups(); ++i) {
      num_bytes += metadata.RowGroup(i)->total_byte_size();
    }
    const int64_t row_bytes = num_bytes / std::max<int64_t>(1, metadata.num_rows());
    return std::clamp<int64_t>(
        static_cast<int64_t>(kRecordBlockBytes) / std::max<int64_t>(1, row_bytes), 1,
        kMaxBlockRows);
  }

  void check(const arrow::Status& status) const {
    if (!status.ok()) refuse(status);
  }

  [[noreturn]] void refuse(const arrow::Status& status) const {
    file_.fail("cannot be read as Parquet: " + status.message());
  }

  const RecordFile file_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int64_t next_row_ = 1;
};

}  // namespace
}  // namespace tessera

// The module's one symbol, kOpenParquetSymbol.
extern "C" [[gnu::visibility("default")]] tessera::RecordReader* tessera_open_parquet(
    const tessera::RecordFile& file) {
  return new tessera::ParquetReader(file);
}
