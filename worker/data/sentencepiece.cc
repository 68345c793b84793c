#include "worker/data/sentencepiece.h"

#include "sentencepiece.pb.h"
#include "worker/data/mapped_file.h"
#include "worker/data/utf8.h"
#include "worker/errors.h"

namespace tessera {
namespace {

constexpr size_t kMaxModelBytes = size_t{256} << 20;
constexpr size_t kMaxPieceBytes = 512;  // SentencePiece itself stops at 16 characters

}  // namespace

SentencePieceModel read_sentencepiece(const std::filesystem::path& path, const std::string& field) {
  const auto fail = [&](const std::string& problem) {
    throw UserError(field, path.string() + ": " + problem);
  };
  const MappedFile file(path, field);
  const std::string_view bytes = file.contents();
  if (bytes.size() > kMaxModelBytes) fail("is larger than a SentencePiece model may be");
  sentencepiece::Model proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      proto.pieces_size() == 0) {
    fail("is not a SentencePiece model");
  }
  if (proto.pieces_size() > kMaxTokens) fail("has too many pieces");
  const auto& trainer = proto.trainer_spec();
  SentencePieceModel model{
      .is_unigram = trainer.model_type() == sentencepiece::Trainer::UNIGRAM,
      .pieces = {},
      .added = {},
      .charsmap = proto.normalizer_spec().precompiled_charsmap(),
      .byte_fallback = trainer.byte_fallback(),
      .unk_id = trainer.unk_id(),
      .bos_id = trainer.bos_id(),
      .eos_id = trainer.eos_id(),
      .unk_piece = trainer.unk_piece(),
      .bos_piece = trainer.bos_piece(),
      .eos_piece = trainer.eos_piece(),
  };
  if (trainer.model_type() != sentencepiece::Trainer::UNIGRAM &&
      trainer.model_type() != sentencepiece::Trainer::BPE) {
    fail("is a model of words or characters, which is not supported");
  }
  if (model.unk_id >= proto.pieces_size()) fail("has an unknown piece that is none of its pieces");
  for (const auto& piece : proto.pieces()) {
    const std::string place = "has at " + std::to_string(model.pieces.size()) + " a piece that ";
    if (!is_valid_utf8(piece.piece())) fail(place + "is not UTF-8");
    if (piece.piece().empty()) fail(place + "is empty");
    if (piece.piece().size() > kMaxPieceBytes) fail(place + "is too long");
    model.pieces.push_back({piece.piece(), piece.score()});
    const bool control = piece.type() == sentencepiece::Piece::CONTROL;
    if (control || piece.type() == sentencepiece::Piece::USER_DEFINED) {
      model.added.push_back({.content = piece.piece(), .special = control});
    }
  }
  return model;
}

BpeParts bpe_of(const SentencePieceModel& model) {
  BpeParts parts;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    parts.vocabulary.add(model.pieces[id].text, static_cast<int32_t>(id));
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const std::string_view text = model.pieces[id].text;
    // Of pieces of the same text the last has the id.
    if (parts.vocabulary.id_of(text) != static_cast<int32_t>(id)) continue;
    for (size_t at = first_code_point(text).num_bytes; at < text.size();
         at += first_code_point(text.substr(at)).num_bytes) {
      const auto left = parts.vocabulary.id_of(text.substr(0, at));
      const auto right = left ? parts.vocabulary.id_of(text.substr(at)) : std::nullopt;
      if (!right) continue;
      parts.merges.push_back({*left, *right, static_cast<int32_t>(id)});
    }
  }
  return parts;
}

}  // namespace tessera
