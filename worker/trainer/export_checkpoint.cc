#include "worker/trainer/export_checkpoint.h"

#include <ATen/ops/empty.h>

#include "worker/checkpoint/export.h"
#include "worker/checkpoint/reader.h"
#include "worker/errors.h"
#include "worker/model/adapter_files.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/peft_options.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/resume.h"

namespace tessera {

void export_checkpoint(const ExportRequest& request) {
  const FoundCheckpoint found = find_checkpoint(request.checkpoint, "checkpoint");
  CheckpointReader reader(found.path, "checkpoint");
  const v1::CheckpointState& state = reader.state();
  const std::filesystem::path model_path =
      request.model.empty() ? std::filesystem::path(state.model_path()) : request.model;
  ModelConfig config = read_model_config(model_path);
  config.num_labels = state.classifier().num_labels();
  config.score_pad_token_id = state.classifier().pad_token_id();
  DecoderModel model(config, /*head_chunk_tokens=*/1);
  ExportOptions options;
  options.classifier = classifier_config(config);
  if (state.has_peft()) {
    const LoraOptions lora = lora_of_job(state.peft());
    add_adapters(model, lora);
    write_as_adapter(model, lora, model_path, options);
  }
  const std::vector<FlatLayout> layouts = trainable_layouts(model, /*world_size=*/1);
  check_checkpoint({found.step, found.path, "checkpoint"}, layouts);

  // Without a slash at its end, which would make its name empty.
  options.directory =
      (std::filesystem::absolute(request.directory) / "").lexically_normal().parent_path();
  options.model_source = model_path;
  options.tokenizer_source =
      request.model.empty() ? std::filesystem::path(state.tokenizer_path()) : request.model;
  const std::string dtype = !request.dtype.empty() ? request.dtype
                            : state.has_peft()     ? "float32"
                                                   : state.dtype();
  options.dtype = dtype == "bfloat16" ? at::kBFloat16 : dtype == "float16" ? at::kHalf : at::kFloat;
  const auto read = [&](size_t layout, int64_t begin, int64_t numel) {
    const at::Tensor piece = at::empty({numel}, at::kFloat);
    reader.read(layouts[layout].name + "/parameter", begin, piece);
    return piece;
  };
  const auto single = make_single_collectives();
  export_hugging_face(options, layouts, read, *single);
}

}  // namespace tessera
