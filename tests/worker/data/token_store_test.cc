#include "worker/data/token_store.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/worker/data/fixtures.h"
#include "worker/data/packed_dataset.h"
#include "worker/data/paged_mapping.h"
#include "worker/data/row_plan.h"

namespace tessera {
namespace {

struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // empty: all count
  std::optional<float> value = {};
};

std::vector<Document> random_documents(int count, bool masked) {
  std::mt19937 random(7);
  std::vector<Document> documents(count);
  for (Document& document : documents) {
    document.tokens.resize(random() % 150);
    for (auto& token : document.tokens) token = static_cast<int32_t>(random() % 50000);
    if (!masked || random() % 3 == 0) continue;
    document.mask.resize(document.tokens.size());
    const unsigned share = random() % 4;  // sometimes none counts
    for (auto& bit : document.mask) bit = random() % 4 < share;
  }
  return documents;
}

template <class Writer>
void write(const std::vector<Document>& documents, Writer& writer) {
  for (const Document& document : documents) {
    writer.append(document.tokens, document.mask, document.value);
  }
  writer.finish();
}

int64_t count(const Document& document, int64_t begin, int64_t length) {
  if (document.mask.empty()) return length;
  return std::count(document.mask.begin() + begin, document.mask.begin() + begin + length, 1);
}

void expect_holds(const TokenStore& store, const std::vector<Document>& documents) {
  ASSERT_EQ(store.size(), static_cast<int64_t>(documents.size()));
  std::mt19937 random(1);
  for (size_t i = 0; i < documents.size(); ++i) {
    const Document& document = documents[i];
    const auto size = static_cast<int64_t>(document.tokens.size());
    const auto index = static_cast<int64_t>(i);
    ASSERT_EQ(store.length(index), size);
    const int64_t begin = static_cast<int64_t>(random()) % (size + 1);
    const int64_t length = static_cast<int64_t>(random()) % (size - begin + 1);
    std::vector<int32_t> tokens;
    store.append_tokens(index, begin, length, tokens);
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), document.tokens.begin() + begin));
    std::vector<uint8_t> mask;
    store.append_mask(index, begin, length, mask);
    ASSERT_EQ(static_cast<int64_t>(mask.size()), length);
    for (int64_t j = 0; j < length; ++j) EXPECT_EQ(mask[j], count(document, begin + j, 1));
    EXPECT_EQ(store.count(index, begin, length), count(document, begin, length));
    const int64_t first = store.first_counted(index);
    EXPECT_EQ(count(document, 0, first), 0);
    EXPECT_TRUE(first == size || count(document, first, 1) == 1);
    EXPECT_EQ(store.value(index), document.value.value_or(0));
  }
}

TEST(TokenStore, HoldsWhatWasWritten) {
  for (const bool masked : {false, true}) {
    const auto documents = random_documents(500, masked);
    TokenStoreWriter in_memory;
    write(documents, in_memory);
    EXPECT_EQ(TokenStore(in_memory).has_masks(), masked);
    expect_holds(TokenStore(in_memory), documents);

    const TemporaryFolder folder;
    TokenStoreWriter on_disk(folder.path());
    write(documents, on_disk);
    std::string problem;
    const auto store = TokenStore::open(folder.path(), problem);
    ASSERT_NE(store, nullptr) << problem;
    expect_holds(*store, documents);
  }
}

TEST(TokenStore, HoldsAValueADocumentAndHowManyARecordHas) {
  auto documents = random_documents(300, /*masked=*/true);
  documents[7].value = 0.5F;
  documents[250].value = -3.0F;
  const TemporaryFolder folder;
  TokenStoreWriter writer(folder.path());
  writer.set_documents_per_record(2);
  write(documents, writer);
  std::string problem;
  const auto store = TokenStore::open(folder.path(), problem);
  ASSERT_NE(store, nullptr) << problem;
  EXPECT_TRUE(store->has_values());
  EXPECT_EQ(store->documents_per_record(), 2);
  expect_holds(*store, documents);
  TokenStoreWriter plain;
  write(random_documents(3, false), plain);
  EXPECT_FALSE(TokenStore(plain).has_values());
  EXPECT_EQ(TokenStore(plain).documents_per_record(), 1);
}

TEST(TokenStore, NoticesEveryDamage) {
  auto documents = random_documents(50, /*masked=*/true);
  for (Document& document : documents) document.value = 1;
  for (const char* name : {"header", "tokens", "masks", "offsets", "values"}) {
    for (const bool truncates : {false, true}) {
      const TemporaryFolder folder;
      TokenStoreWriter writer(folder.path());
      write(documents, writer);
      const auto path = folder.path() / name;
      if (truncates) {
        std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
      } else {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(17);
        const auto byte = static_cast<char>(file.get() ^ 4);
        file.seekp(17);
        file.put(byte);
      }
      std::string problem;
      EXPECT_EQ(TokenStore::open(folder.path(), problem), nullptr) << name;
      EXPECT_THAT(problem, testing::HasSubstr("damaged"));
    }
  }
  const TemporaryFolder nothing;
  std::string problem;
  EXPECT_EQ(TokenStore::open(nothing.path(), problem), nullptr);
  EXPECT_EQ(problem, "");
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size, resident, shared;
  file >> size >> resident >> shared;
  return shared * 4096;  // pages of files
}

TEST(PagedMapping, KeepsLittleResident) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  const TemporaryFolder folder;
  const auto path = folder.write("large", "");
  std::filesystem::resize_file(path, kBytes);
  const FileDescriptor file = open_regular_file(path, "test");
  const PagedMapping mapping(file.get(), kBytes);
  const int64_t before = resident_bytes();
  int64_t most = 0;
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const auto offset = static_cast<int64_t>(random() % (kBytes - 4096));
    EXPECT_EQ(mapping.at(offset, 4096)[4095], std::byte{0});
    if (i % 64 == 0) most = std::max(most, resident_bytes() - before);
  }
  EXPECT_LE(most, 2 * PagedMapping::kMaxResidentBytes);
}

// What rows hold according to the plan of packing_test, whose lengths and masks these are.
TEST(RowPlan, CutsTokensAndMasksAlike) {
  const auto documents = random_documents(2300, /*masked=*/true);
  TokenStoreWriter writer;
  write(documents, writer);
  std::vector<std::unique_ptr<TokenStore>> stores;
  stores.push_back(std::make_unique<TokenStore>(writer));
  const Corpus corpus(std::move(stores));
  std::vector<int64_t> lengths;
  for (const Document& document : documents) {
    lengths.push_back(static_cast<int64_t>(document.tokens.size()));
  }
  for (const auto packing :
       {PackingStrategy::kBfd, PackingStrategy::kBfdSplit, PackingStrategy::kWrapped}) {
    const PackingPlan expected = plan_packing(lengths, 64, packing);
    const RowPlan plan(corpus, {}, {.max_length = 64, .packing = packing});
    ASSERT_EQ(plan.size(), expected.num_rows());
    for (int64_t row = 0; row < plan.size(); ++row) {
      std::vector<Segment> segments;
      plan.for_each(row, [&](int64_t document, int64_t begin, int64_t length) {
        segments.push_back({document, begin, length});
      });
      ASSERT_THAT(segments, testing::ElementsAreArray(expected.row(row)));
    }
  }
}

TEST(RowPlan, LeavesOutWhatIsFullyMaskedOnlyWhereThereIsAMaxLength) {
  TokenStoreWriter writer;
  write({{{1, 2, 3}, {0, 0, 0}}, {{4, 5, 6}, {0, 0, 1}}, {{7}, {}}, {{}, {}}, {{8, 9}, {0, 1}}},
        writer);
  std::vector<std::unique_ptr<TokenStore>> stores;
  stores.push_back(std::make_unique<TokenStore>(writer));
  const Corpus corpus(std::move(stores));
  const auto documents = [&](int64_t max_length) {
    const RowPlan plan(corpus, {}, {.max_length = max_length});
    std::vector<int64_t> found;
    for (int64_t row = 0; row < plan.size(); ++row) {
      plan.for_each(row, [&](int64_t document, int64_t, int64_t) { found.push_back(document); });
    }
    return found;
  };
  EXPECT_THAT(documents(0), testing::ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(documents(3), testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(documents(2), testing::ElementsAre(2, 4));
  EXPECT_THAT(documents(1), testing::ElementsAre(2));
}

PackingStrategy strategy_of(const std::string& name) {
  if (name == "bfd") return PackingStrategy::kBfd;
  if (name == "bfd_split") return PackingStrategy::kBfdSplit;
  return name == "wrapped" ? PackingStrategy::kWrapped : PackingStrategy::kNone;
}

// The tokens of all documents are 0, 1, 2 ..., so a token says where it comes from.
std::unique_ptr<TokenStore> store_of(const nlohmann::json& masks) {
  TokenStoreWriter writer;
  int32_t next = 0;
  for (const auto& bits : masks) {
    Document document;
    for (const char bit : bits.get<std::string>()) {
      document.tokens.push_back(next++);
      document.mask.push_back(bit == '1');
    }
    writer.append(document.tokens, document.mask);
  }
  writer.finish();
  return std::make_unique<TokenStore>(writer);
}

void expect_row(const Dataset& dataset, int64_t index, const nlohmann::json& expected) {
  const auto begins = expected[0].get<std::vector<int32_t>>();
  const auto lengths = expected[1].get<std::vector<int32_t>>();
  const auto bits = expected[2].get<std::string>();
  const Row row = dataset.row(index);
  ASSERT_EQ(row.lengths, lengths);
  ASSERT_EQ(row.tokens.size(), bits.size());
  ASSERT_EQ(row.loss_mask.size(), bits.size());
  size_t at = 0;
  int64_t num_labels = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    for (int32_t j = 0; j < lengths[i]; ++j, ++at) {
      ASSERT_EQ(row.tokens[at], begins[i] + j);
      ASSERT_EQ(row.loss_mask[at], bits[at] == '1');
      num_labels += j > 0 && bits[at] == '1';
    }
  }
  EXPECT_EQ(dataset.num_tokens(index), static_cast<int64_t>(bits.size()));
  EXPECT_EQ(dataset.num_labels(index), num_labels);
}

TEST(PackedDataset, MasksAreThoseOfTrl) {
  const auto fixture = read_json_fixture("masked.json");
  ASSERT_EQ(fixture["cases"].size(), 5);
  for (const auto& expected : fixture["cases"]) {
    std::vector<std::unique_ptr<TokenStore>> stores;
    stores.push_back(store_of(fixture["documents"]));
    const PackedDataset dataset(
        std::move(stores), {},
        {.max_length = expected["max_length"], .packing = strategy_of(expected["strategy"])});
    ASSERT_EQ(dataset.size(), static_cast<int64_t>(expected["rows"].size()));
    for (int64_t i = 0; i < dataset.size(); ++i) expect_row(dataset, i, expected["rows"][i]);
  }
}

}  // namespace
}  // namespace tessera
