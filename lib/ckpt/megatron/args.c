/*
 * args.c - find settings of Megatron that are not supported here, and options of models that Megatron does not support.
 *
 * Names and defaults are from megatron/core/transformer/transformer_config.py, megatron/training/arguments.py and
 * megatron/post_training/arguments.py, core 0.8 to 0.20.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/megatron/megatron.h"

/*
 * Settings that change the output of the model.  The member `neutral` lists, separated by blanks, the values that do
 * not change the output.  Numbers are compared by value.  The value None is always neutral.  A tuple or list is neutral
 * if it is listed itself, or if all of its elements are listed.
 */
/* clang-format off */
static const struct rule {
    const char *name, *neutral, *changes;
} rules[] = {
    { "num_experts", "", "a mixture of experts" },
    { "num_moe_experts", "", "a mixture of experts" },
    { "multi_latent_attention", "False", "multi-latent attention" },
    { "experimental_attention_variant", "", "a different type of attention" },
    { "linear_attention_type", "", "linear attention" },
    { "linear_attention_freq", "0", "linear attention" },
    { "attention_output_gate", "False", "a gate on the attention output" },
    { "qk_l2_norm", "False", "normalized queries and keys" },
    { "export_qk_l2_norm", "False", "normalized queries and keys" },
    { "rope_type", "rope", "a different type of RoPE scaling" },
    { "enable_gpt_oss", "False", "a different type of RoPE scaling" },
    { "mrope_section", "", "multimodal RoPE" },
    { "layernorm_zero_centered_gamma", "False", "norms that multiply by 1 + weight" },
    { "enable_mhc_connections", "False", "several residual streams" },
    { "use_mup", "False", "maximal update parametrization" },
    { "mup_width_mult", "1", "maximal update parametrization" },
    { "mup_base_hidden_size", "", "maximal update parametrization" },
    { "mup_embedding_mult", "1", "maximal update parametrization" },
    { "mup_output_mult", "1", "maximal update parametrization" },
    { "mup_base_head_dim", "", "maximal update parametrization" },
    { "mup_attn_scale_power", "1", "maximal update parametrization" },
    { "is_hybrid_model", "False", "layers of several types" },
    { "hybrid_layer_pattern", "", "layers of several types" },
    { "hybrid_override_pattern", "", "layers of several types" },
    { "hybrid_attention_ratio", "0", "layers of several types" },
    { "hybrid_mlp_ratio", "0", "layers of several types" },
    { "heterogeneous_layers_config_path", "", "layers of several sizes" },
    { "heterogeneous_layers_config_encoded_json", "", "layers of several sizes" },
    { "heterogeneous_block_specs", "False", "layers of several sizes" },
    { "mtp_num_layers", "0", "multi-token prediction" },
    { "mtp_hybrid_override_pattern", "", "multi-token prediction" },
    { "export_num_medusa_heads", "0", "multi-token prediction" },
    { "export_num_eagle_layers", "0", "multi-token prediction" },
    { "retro_add_retriever", "False", "retrieval" },
    { "spec", "local", "custom layer specifications" },
};
enum { NRULES = sizeof rules / sizeof rules[0] };

/*
 * A setting that is not in `rules` is assumed not to change the output if its name contains one of these words.  In a
 * name, words are separated by underscores.  The words are about files, logs, schedules, the optimizer, data, ranks and
 * precision.
 */
static const char *const no_effect_word[] = {
    "dir", "path", "file", "filename", "url", "name", "id", "log", "logging", "logger",
    "tensorboard", "wandb", "timing", "profile", "profiler", "nvtx", "otel", "straggler", "timeout",
    "interval", "save", "load", "ckpt", "checkpoint", "resume", "exit", "rerun", "train", "eval",
    "valid", "test", "iter", "iters", "iteration", "iterations", "samples", "step", "steps",
    "batch", "lr", "warmup", "decay", "optimizer", "optim", "adam", "sgd", "muon", "lion",
    "momentum", "grad", "grads", "gradient", "gradients", "loss", "init", "seed", "dropout",
    "parallel", "ddp", "world", "tp", "pp", "cp", "dp", "ep", "fsdp", "gtp", "nccl", "gloo", "comm",
    "distributed", "pipeline", "shard", "sharding", "overlap", "fusion", "fused", "backend", "cuda",
    "recompute", "offload", "offloading", "dtype", "precision", "fp4", "fp8", "mxfp8", "fp16",
    "bf16", "fp32", "inference", "data", "dataset", "dataloader", "tokenizer", "vocab",
};

/*
 * Settings that do not change the output, and prefixes of such settings.  Many settings with these prefixes configure a
 * feature, such as a mixture of experts, that another setting enables.  `rules` refuses that other setting.
 */
static const char *const no_effect[] = {
    "moe_* mamba_* gdp_* dsa_* mhc_* mtp_* retro_* linear_conv_* linear_key_* linear_value_* linear_num_* yarn_* "
    "relative_attention_* qk_clip* vision_* dino_* swin_* ict_* biencoder_* retriever_* fim_* rl_* grpo_* langrl_* "
    "inprocess_* fault_injector_* flight_recorder_* ft_* logits_load_* logits_save_* async_* export_* manual_gc*",
    /* training and data */
    "model_type finetune freeze_all_layers freeze_base_for_mtp sft seq_length encoder_seq_length decoder_seq_length "
    "encoder_num_layers add_position_embedding bert_binary_head bert_embedder_type output_bert_embeddings "
    "classes_fraction num_classes num_channels img_dim img_h img_w patch_dim mask_factor mask_prob mask_type "
    "short_seq_prob query_in_block_prob sample_rate split mmap_bin_files use_one_sent_docs special_tokens "
    "tiktoken_pattern tiktoken_special_tokens tiktoken_num_special_tokens chat_template use_gigatoken "
    "allow_ambiguous_pad_tokens trust_remote_code reset_position_ids reset_attention_mask renormalize_blend_weights "
    "multiple_validation_sets validation_set_names full_validation override_opt_param_scheduler "
    "apply_wd_to_qk_layernorm hysteresis min_scale num_workers perform_initialization use_cpu_initialization yaml_cfg "
    "mscale mscale_all_dim rotary_scaling_factor beta_fast beta_slow original_max_position_embeddings q_lora_rank "
    "kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim cache_mla_latents use_grouped_gemm_for_dense_mlp "
    "use_grouped_gemm_for_shared_expert",
    /* alternative implementations with the same result */
    "rank local_rank DDP_impl onnx_safe apply_query_key_layer_scaling transformer_impl use_flash_attn "
    "flash_attention_version flash_decode use_te_activation_func use_legacy_models use_legacy_static_engine "
    "deprecated_use_mcore_models use_mcore_models use_transformer_engine_op_fuser use_kitchen use_kitchen_attention "
    "kitchen_recipe_number quant_recipe enable_autocast deterministic_mode disable_jit_fuser enable_experimental "
    "enable_chunked_prefill disable_chunked_prefill mlp_chunks_for_prefill mlp_chunks_for_training "
    "num_speculative_tokens max_tokens_to_oom no_persist_layer_norm persist_layer_norm memory_efficient_layer_norm "
    "disable_parameter_transpose_cache clone_scatter_output_in_embedding variable_seq_lengths timers te_rng_tracker "
    "use_te_rng_tracker symmetric_ar_type use_sharp sharp_enabled_group disable_symmetric_registration "
    "high_priority_stream_groups fake_process_group create_all_gather_group use_ring_exchange_p2p no_sync_func "
    "param_sync_func delay_param_gather align_param_gather delay_wgrad_compute defer_embedding_wgrad_compute "
    "wgrad_deferral_limit distribute_saved_activations distribute_checkpointed_activations "
    "num_microbatches_with_partial_activation_checkpoints standalone_embedding_stage "
    "microbatch_group_size_per_vp_stage suggested_communication_unit_size use_torch_fsdp2 "
    "torch_fsdp2_reshard_after_forward use_layer_wise_param_layout pin_cpu_params min_offloaded_tensor_size "
    "empty_unused_memory_level refit_method",
    /* monitoring */
    "adlr_autoresume app_tag_run_version barrier_with_L1_time calc_ft_timeouts disable_msc_deprecated enable_msc "
    "enable_ft_package dump_param_to_param_group_map error_injection_rate error_injection_type record_memory_history "
    "record_shapes replication replication_factor replication_jump run_workload_inspector_server verify_integrity "
    "num_floating_point_operations_so_far modelopt_enabled",
    NULL
};
/* clang-format on */

static bool is_in(const char *name, size_t n, const char *const *list, size_t nlist)
{
    for (size_t i = 0; i < nlist; i++)
        if (strlen(list[i]) == n && memcmp(list[i], name, n) == 0)
            return true;
    return false;
}

#define IS_IN(name, n, list) is_in(name, n, list, sizeof(list) / sizeof((list)[0]))

static bool has_no_effect(const char *name)
{
    for (const char *const *list = no_effect; *list; list++)
        if (meg_opt_is_listed(*list, name, NULL))
            return true;
    for (const char *word = name; *word; word += strspn(word, "_")) {
        const size_t n = strcspn(word, "_");

        if (n && IS_IN(word, n, no_effect_word))
            return true;
        word += n;
    }
    return false;
}

/* Return whether ckpt_read_args converts this attribute to a model option. */
static bool is_option(const char *name)
{
    char buf[64];

    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        const char *arg = ckpt_arg_name(buf, row);

        if (arg && strcmp(arg, name) == 0)
            return true;
    }
    return strcmp(name, "layernorm_epsilon") == 0 || strcmp(name, "openai_gelu") == 0;
}

struct meg_model_conf ckpt_supported_options(const struct meg_model_conf *model, enum meg_ckpt_names names)
{
    static const char all[] = "rotary-base-window rope-long-factors rope-short-factors "
                              "rope-original-max-position-embeddings rope-scaling-low-freq-factor "
                              "rope-scaling-high-freq-factor rope-scaling-original-max-position-embeddings "
                              "yarn-attention-factor attn-temperature-*";
    const char *missing = names == MEG_CKPT_NAMES_LEGACY
                              ? "position-embedding-type=relative position-embedding-type=yarn qk-* softmax-type "
                                "add-output-bias window-size window-attn-skip-freq no-rope-freq"
                              : "apply-residual-connection-post-layernorm";
    struct meg_model_conf m = *model;

    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        char *value = meg_opt_value(row, &m);

        if (meg_opt_is_listed(missing, row->name, value) || meg_opt_is_listed(all, row->name, value))
            meg_opt_reset(row, &m);
        free(value);
    }
    return m;
}

static const struct rule *find_rule(const char *name)
{
    for (int i = 0; i < NRULES; i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    return NULL;
}

/* ---- values ---- */

/*
 * Append a value in the notation of `neutral`: as Python prints it, but without quotes, blanks and ".0", and a list as
 * a tuple.  Long strings, long tuples and nested tuples are truncated.  An object is printed as "an object of CLASS".
 * For any other type, such as a dict, "a value of a different type" is appended.
 */
static void print(struct meg_str *out, const struct meg_py *v, int depth)
{
    switch (v->type) {
    case MEG_PY_NONE: meg_str_printf(out, "None"); break;
    case MEG_PY_BOOL: meg_str_printf(out, v->i ? "True" : "False"); break;
    case MEG_PY_INT: meg_str_printf(out, "%" PRId64, v->i); break;
    case MEG_PY_FLOAT: meg_str_printf(out, "%.12g", v->f); break;
    case MEG_PY_STR: meg_str_printf(out, "%.*s", v->n < 60 ? (int)v->n : 60, v->s); break;
    case MEG_PY_TUPLE:
    case MEG_PY_LIST:
        meg_str_printf(out, "(");
        for (size_t i = 0; i < v->nv && i < 8 && depth == 0; i++) {
            meg_str_printf(out, i ? "," : "");
            print(out, v->v[i], depth + 1);
        }
        meg_str_printf(out, v->nv > 8 || depth ? "...)" : ")");
        break;
    case MEG_PY_GLOBAL:
        meg_str_printf(out, "%.*s.%.*s", v->n < 60 ? (int)v->n : 60, v->s, v->nname < 60 ? (int)v->nname : 60, v->name);
        break;
    case MEG_PY_OBJECT:
        meg_str_printf(out, "an object of ");
        print(out, v->fn, depth + 1);
        break;
    default: meg_str_printf(out, "a value of a different type");
    }
}

/* Return whether a value is in the list `neutral`. */
static bool is_one_of(const struct meg_py *v, const char *neutral)
{
    struct meg_str text = { 0 };
    bool found = false;
    double x;
    char *end;

    print(&text, v, 0);
    for (const char *w = neutral; *w && !found; w += strspn(w, " ")) {
        const size_t n = strcspn(w, " ");

        found = n == text.n && memcmp(w, text.s, n) == 0;
        x = strtod(w, &end);
        if (end == w + n && (v->type == MEG_PY_INT || v->type == MEG_PY_FLOAT))
            found = x == (v->type == MEG_PY_INT ? (double)v->i : v->f);
        w += n;
    }
    meg_str_free(&text);
    return found;
}

static bool is_neutral(const struct meg_py *v, const char *neutral)
{
    if (v->type == MEG_PY_NONE || is_one_of(v, neutral))
        return true;
    if (v->type != MEG_PY_TUPLE && v->type != MEG_PY_LIST)
        return false;
    for (size_t i = 0; i < v->nv; i++)
        if (!is_one_of(v->v[i], neutral))
            return false;
    return true;
}

/*
 * Return whether a value means that a setting is off, whatever the setting is: None, False, 0, or an empty string,
 * bytes object, tuple, list, set or dict.
 */
static bool is_off(const struct meg_py *v)
{
    switch (v->type) {
    case MEG_PY_NONE: return true;
    case MEG_PY_BOOL:
    case MEG_PY_INT: return v->i == 0;
    case MEG_PY_FLOAT: return v->f == 0;
    case MEG_PY_STR:
    case MEG_PY_BYTES: return v->n == 0;
    case MEG_PY_TUPLE:
    case MEG_PY_LIST:
    case MEG_PY_SET:
    case MEG_PY_DICT: return v->nv == 0;
    default: return false;
    }
}

/*
 * Return whether a value is a path or a plain object; neither describes the model.  A path is a string with a slash.  A
 * plain object is a class or an object of the modules below, for example a torch dtype.
 */
static bool is_plain_object(const struct meg_py *v)
{
    static const char *const modules[] = { "torch", "pathlib", "datetime", "collections", "argparse" };
    const struct meg_py *class = v->type == MEG_PY_OBJECT ? v->fn : v;

    if (v->type == MEG_PY_STR)
        return memchr(v->s, '/', v->n) != NULL;
    return class->type == MEG_PY_GLOBAL && IS_IN(class->s, class->n, modules);
}

/* ---- the check ---- */

/* If an attribute of args is not supported, append its name and value to `wrong`. */
static void check_attribute(struct meg_str *wrong, const char *name, const struct meg_py *v)
{
    const struct rule *rule = find_rule(name);

    if (rule ? is_neutral(v, rule->neutral) : is_off(v) || is_option(name) || has_no_effect(name) || is_plain_object(v))
        return;
    meg_str_printf(wrong, "%s%s = ", wrong->n ? "; " : "", name);
    print(wrong, v, 0);
    meg_str_printf(wrong, rule ? " (%s)" : " (unknown setting)", rule ? rule->changes : "");
}

int ckpt_check_args(const struct meg_py *args, const char *from, struct meg_err *e)
{
    const struct meg_py *o = args->state;
    struct meg_str wrong = { 0 };
    int r = 0;

    for (size_t i = 0; i + 1 < o->nv; i += 2) {
        char name[128];

        if (o->v[i]->type != MEG_PY_STR || wrong.n > 1000)
            continue;
        snprintf(name, sizeof name, "%.*s", o->v[i]->n < sizeof name ? (int)o->v[i]->n : (int)sizeof name - 1,
                 o->v[i]->s);
        check_attribute(&wrong, name, o->v[i + 1]);
    }
    for (size_t i = 0; i < wrong.n; i++)
        if (iscntrl((unsigned char)wrong.s[i]))
            wrong.s[i] = '?';
    if (wrong.n)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: args has unsupported settings that may change the output of the model: %s; if a setting does "
                     "not change the output, remove it from args and save the file again",
                     from, wrong.s);
    meg_str_free(&wrong);
    return r;
}
