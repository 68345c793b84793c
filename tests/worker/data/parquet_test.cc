// Parquet files, written here by Arrow from the lines that the JSONL reader reads.
#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/io/file.h>
#include <arrow/io/memory.h>
#include <arrow/json/reader.h>
#include <arrow/table.h>
#include <gmock/gmock.h>
#include <parquet/arrow/writer.h>

#include "tests/worker/data/data_fixture.h"
#include "worker/data/record_reader.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string lines_of(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    nlohmann::ordered_json call = {{"name", "f"}, {"arguments", {{"x", i}, {"y", {0.5, 2.25}}}}};
    nlohmann::ordered_json message = {{"role", "user"}, {"content", nullptr}, {"calls", {call}}};
    if (i % 3 == 0)
      message = {{"role", "é"}, {"content", "c" + std::to_string(i)}, {"calls", nullptr}};
    nlohmann::ordered_json row = {{"text", "document " + std::string(i % 50, 'x')},
                                  {"number", i},
                                  {"flag", i % 2 == 0},
                                  {"notes", {message, message}}};
    if (i % 7 == 0) row["maybe"] = nullptr;
    if (i % 7 == 1) row["maybe"] = "there";
    lines += row.dump() + "\n";
  }
  return lines;
}

std::shared_ptr<arrow::Table> table_of(const std::string& lines) {
  auto input = std::make_shared<arrow::io::BufferReader>(arrow::Buffer::FromString(lines));
  auto reader = arrow::json::TableReader::Make(arrow::default_memory_pool(), input,
                                               arrow::json::ReadOptions::Defaults(),
                                               arrow::json::ParseOptions::Defaults());
  return (*reader)->Read().ValueOrDie();
}

std::filesystem::path write(const arrow::Table& table, const std::filesystem::path& path,
                            arrow::Compression::type compression = arrow::Compression::SNAPPY,
                            int64_t rows_a_group = 100) {
  auto out = arrow::io::FileOutputStream::Open(path.string()).ValueOrDie();
  const auto properties = parquet::WriterProperties::Builder()
                              .compression(compression)
                              ->enable_page_checksum()
                              ->build();
  const auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  EXPECT_TRUE(parquet::arrow::WriteTable(table, arrow::default_memory_pool(), out, rows_a_group,
                                         properties, arrow_properties)
                  .ok());
  EXPECT_TRUE(out->Close().ok());
  return path;
}

// Nulls of records are as good as missing.
std::vector<std::string> records_in(const std::filesystem::path& path) {
  std::vector<std::string> records;
  const auto reader = open_records({path, "data.train"});
  while (const auto block = reader->next_block()) {
    while (const Record* record = block->next()) {
      std::string text;
      for (const char* field : {"text", "number", "flag", "messages", "maybe"}) {
        text += record->has(field) ? record->json(field).dump() : "-";
        text += record->is_string(field) ? record->string(field) : "";
      }
      records.push_back(text);
    }
  }
  return records;
}

TEST(Parquet, HoldsTheRecordsOfItsLines) {
  const TemporaryFolder folder;
  const std::string lines = lines_of(3000);
  const auto expected = records_in(folder.write("a.jsonl", lines));
  ASSERT_EQ(expected.size(), 3000);
  const auto table = table_of(lines);
  for (const auto compression :
       {arrow::Compression::UNCOMPRESSED, arrow::Compression::SNAPPY, arrow::Compression::GZIP,
        arrow::Compression::BROTLI, arrow::Compression::ZSTD, arrow::Compression::LZ4_HADOOP}) {
    const auto path = write(*table, folder.path() / "a.parquet", compression, 700);
    EXPECT_EQ(records_in(path), expected) << static_cast<int>(compression);
  }
}

template <class Builder>
std::shared_ptr<arrow::Array> strings() {
  Builder builder;
  EXPECT_TRUE(builder.Append("one").ok() && builder.Append("two").ok() &&
              builder.Append("one").ok() && builder.AppendNull().ok());
  return builder.Finish().ValueOrDie();
}

TEST(Parquet, ReadsEveryKindOfString) {
  const TemporaryFolder folder;
  for (const auto& column :
       {strings<arrow::StringBuilder>(), strings<arrow::LargeStringBuilder>(),
        strings<arrow::StringViewBuilder>(), strings<arrow::StringDictionary32Builder>()}) {
    const auto schema = arrow::schema({arrow::field("text", column->type())});
    const auto path = write(*arrow::Table::Make(schema, {column}), folder.path() / "a.parquet");
    EXPECT_THAT(records_in(path),
                testing::ElementsAre("\"one\"one----", "\"two\"two----", "\"one\"one----", "-----"))
        << column->type()->ToString();
  }
}

std::string error_of(const std::filesystem::path& path) {
  try {
    load_dataset(dataset_of({path}));
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "data.train");
    return error.what();
  }
  return "no error";
}

TEST(Parquet, NamesTheRowOfAnError) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 1; i <= 1500; ++i) lines += i == 1203 ? "{\"n\": 1}\n" : "{\"text\": \"fine\"}\n";
  EXPECT_THAT(error_of(write(*table_of(lines), folder.path() / "a.parquet")),
              HasSubstr("a.parquet row 1203: the field \"text\" is not a string"));
  EXPECT_THAT(error_of(write(*table_of("{\"body\": \"x\"}\n"), folder.path() / "b.parquet")),
              HasSubstr("b.parquet row 1: the first record has none of \"text\""));

  arrow::StringBuilder builder;
  ASSERT_TRUE(builder.Append("fine").ok() && builder.Append("\xFF").ok());
  const auto column = builder.Finish().ValueOrDie();
  const auto table =
      arrow::Table::Make(arrow::schema({arrow::field("text", arrow::utf8())}), {column});
  EXPECT_THAT(error_of(write(*table, folder.path() / "c.parquet")),
              HasSubstr("c.parquet row 2: the field \"text\" is not valid UTF-8"));
}

// Bytes changed anywhere, and files cut short, are errors or read as what they were.
TEST(Parquet, DamagedFilesAreErrors) {
  const TemporaryFolder folder;
  const auto path = write(*table_of(lines_of(30)), folder.path() / "a.parquet");
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  int num_errors = 0;
  for (size_t i = 4; i < whole.size(); i += whole.size() / 25) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x55);
    const std::string error = error_of(folder.write("b.parquet", changed));
    num_errors += error.find("b.parquet") != std::string::npos;
    EXPECT_TRUE(error == "no error" || error.find("b.parquet") != std::string::npos) << error;
    EXPECT_THAT(error_of(folder.write("c.parquet", whole.substr(0, i))),
                HasSubstr("c.parquet: cannot be read as Parquet: "));
  }
  EXPECT_GT(num_errors, 10);
}

TEST(Parquet, PacksAsItsLinesDo) {
  const TemporaryFolder folder;
  const std::string lines = lines_of(1500);
  auto options = dataset_of({folder.write("a.jsonl", lines)});
  options.packing = PackingStrategy::kBfd;
  options.max_length = 40;
  const auto expected = decoded_rows(*load_dataset(options));
  options.sources[0].paths = {write(*table_of(lines), folder.path() / "a.parquet")};
  options.num_threads = 3;
  EXPECT_EQ(decoded_rows(*load_dataset(options)), expected);
}

}  // namespace
}  // namespace tessera
