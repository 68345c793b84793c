"""The parity cases of methods that train on completions made for them."""


def online(method, data="rollouts", **options):
    """Rows in the order of the file; completions of a prompt are among those of a batch."""
    places = ("model", "peft", "training")
    fields = {key: options.pop(key) for key in places if key in options}
    sizes = {"num_generations": 4, "max_completion_length": 14}
    own = {"max_length": 0} if method == "online_dpo" else sizes
    return {"method": method, "data": data, "options": own | options, **fields}


def grpo(**options):
    return online("grpo", **options)


def rloo(**options):
    return online("rloo", **options)


def online_dpo(data="rollouts_pairs", **options):
    return online("online_dpo", data=data, **options)


def ppo(data="rollouts_judged", reference="", batch=24, **options):
    """TRL clips no gradients, and trains as many steps as the completions give."""
    training = {"max_grad_norm": 0.0, "max_steps": -1, "num_train_epochs": 1}
    fields = online("ppo", data=data, **options)
    sizes = ("num_generations", "max_completion_length")
    own = {name: value for name, value in fields["options"].items() if name not in sizes}
    return fields | {
        "options": {"response_length": 14} | own,
        "training": training | fields.get("training", {}),
        "value": "llama_reward",
        "reference": reference,
        "batch": batch,
    }


TRAINING = {"max_steps": 6, "learning_rate": 1e-4}
# Passes that change the policy under completions that were made before.
AGAIN = {"num_iterations": 2, "epsilon": 0.02, "training": {"learning_rate": 3e-4}}

CASES = {
    "grpo": grpo(),
    "grpo_grpo": grpo(loss_type="grpo", **AGAIN),
    "grpo_bnpo": grpo(loss_type="bnpo", scale_rewards="batch", **AGAIN),
    "grpo_dr_grpo": grpo(loss_type="dr_grpo", scale_rewards="none", **AGAIN),
    "grpo_dapo": grpo(loss_type="dapo", epsilon_high=0.03, delta=1.08, **AGAIN),
    "grpo_cispo": grpo(loss_type="cispo", epsilon_high=1.01, **AGAIN),
    "grpo_sapo": grpo(loss_type="sapo", **AGAIN),
    "grpo_luspo": grpo(loss_type="luspo", importance_sampling_level="sequence", **AGAIN),
    "grpo_vespo": grpo(
        loss_type="vespo", vllm_importance_sampling_mode="token_truncate", num_iterations=2
    ),
    "grpo_kl": grpo(beta=0.1, use_bias_correction_kl=False, **AGAIN),
    "grpo_kl_bias": grpo(beta=0.1, **AGAIN),
    "grpo_accumulation": grpo(
        steps_per_generation=4, training={"gradient_accumulation_steps": 2, "learning_rate": 3e-4}
    ),
    "grpo_generation_batch": grpo(
        generation_batch_size=24, multi_objective_aggregation="normalize_then_sum", loss_type="bnpo"
    ),
    "grpo_mask_truncated": grpo(mask_truncated_completions=True, reward_weights=[0.5, 2.0]),
    "grpo_entropy": grpo(top_entropy_quantile=0.4, **AGAIN),
    "grpo_temperature": grpo(temperature=0.7, beta=0.05, **AGAIN),
    "grpo_off_policy": grpo(off_policy_mask_threshold=0.001, **AGAIN),
    "grpo_sampled": grpo(data="rollouts_sampled"),
    "grpo_sampled_tokens": grpo(
        data="rollouts_sampled",
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1.2,
        vllm_importance_sampling_clip_min=0.8,
        off_policy_mask_threshold=0.1,
        loss_type="grpo",
    ),
    "grpo_sampled_vespo": grpo(
        data="rollouts_sampled",
        loss_type="vespo",
        vllm_importance_sampling_mode="token_mask",
        vllm_importance_sampling_clip_max=1.3,
    ),
    "grpo_lora": grpo(beta=0.1, peft=True, **AGAIN),
    "grpo_sync": grpo(
        beta=0.1, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.5
    ),
    "grpo_mixture": grpo(model="qwen3_moe", router_aux_loss_coef=0.3),
    "rloo": rloo(),
    "rloo_again": rloo(beta=0.1, num_iterations=2, epsilon=0.05, training={"learning_rate": 1e-5}),
    "rloo_normalized": rloo(
        normalize_advantages=True, reward_clip_range=[-1.0, 1.0], temperature=0.8
    ),
    "rloo_no_reference": rloo(beta=0.0, mask_truncated_completions=True, reward_weights=[0.5, 2.0]),
    "rloo_lora": rloo(peft=True, steps_per_generation=2),
    "online_dpo": online_dpo(missing_eos_penalty=1.0),
    "online_dpo_full": online_dpo(data="rollouts_pairs_full"),
    "online_dpo_ipo": online_dpo(loss_type="ipo", beta=[0.3]),
    "online_dpo_lora": online_dpo(peft=True),
    "ppo": ppo(num_mini_batches=2, num_ppo_epochs=2, missing_eos_penalty=1.0),
    "ppo_white": ppo(
        whiten_rewards=True, kl_estimator="k3", gamma=0.95, lam=0.9, num_ppo_epochs=2, kl_coef=0.2
    ),
    "ppo_accumulation": ppo(
        batch=12,
        num_ppo_epochs=3,
        training={"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"},
    ),
    "ppo_reference": ppo(
        reference="llama_bias", num_ppo_epochs=2, vf_coef=0.5, cliprange=0.1, cliprange_value=0.3
    ),
    "ppo_lora": ppo(peft=True, num_mini_batches=2, num_ppo_epochs=2, temperature=1.0),
}


def online_cases(batch, adapters):
    """Fields of a Case by the case's name."""
    more = {"peft": adapters}
    return {
        name: {"batch": batch}
        | case
        | {"training": TRAINING | case.get("training", {})}
        | (more if "peft" in case else {})
        for name, case in CASES.items()
    }
