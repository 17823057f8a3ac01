/* model_type.c - find the family of a Hugging Face model by its config.json. */
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

#define ADDRESS(name) &ckpt_hf_##name,
const struct ckpt_hf_family *const ckpt_hf_families[] = { CKPT_HF_FAMILIES(ADDRESS) NULL };

/*
 * Types of transformers that are refused, and the member of config.json, or the part of the model, that no option
 * covers: mixtures of experts, hybrids with other layers than attention, and other types of attention.
 */
static const struct {
    const char *types, *why;
} refused[] = {
    { "mixtral qwen2_moe qwen3_moe olmoe gpt_oss granitemoe granitemoeshared granitemoehybrid cohere2_moe exaone_moe "
      "glm4_moe glm4_moe_lite hunyuan_v1_moe phimoe dbrx jetmoe minimax minimax_m2 ernie4_5_moe dots1 afmoe solar_open "
      "arctic longcat_flash hy_v3 mimo step3 axk1 sarvam_moe laguna mellum flex_olmo nllb-moe switch_transformers",
      "num_experts: mixtures of experts are not supported" },
    { "deepseek_v2 deepseek_v3 deepseek_v32 minicpm3 youtu kimi_linear",
      "kv_lora_rank: latent attention is not supported" },
    { "qwen3_next qwen3_5 qwen3_5_text qwen4_exp olmo_hybrid lfm2 lfm2_moe",
      "layer_types: layers without attention are not supported" },
    { "mamba mamba2 falcon_mamba falcon_h1 bamba jamba zamba zamba2 nemotron_h rwkv xlstm recurrent_gemma",
      "state-space and recurrent layers are not supported" },
    { "gemma3n gemma3n_text gemma4 gemma4_text",
      "hidden_size_per_layer_input: embeddings of each layer are not supported" },
    { "gemma3 mllama llama4 mistral3 qwen2_vl qwen2_5_vl qwen3_vl llava moshi aria",
      "vision_config or audio_config: only text models are supported; convert the text model" },
    { "bitnet", "quantization_config: ternary weights are not supported" },
    { "chatglm", "the files of ChatGLM are not those of transformers; convert a glm model" },
    { "phi-msft mixformer-sequential", "the files are not those of transformers; use those of model_type phi" },
    { "doge diffllama hrm_text blt zaya lara_mini inkling flint beam kolibri1", "its attention is not supported" },
    { "nanochat", "its rotary positions and norms are not supported" },
    { "xglm biogpt ctrl openai-gpt", "its positions and norms are not supported" },
};

/* Types that have the members and tensors of another type. */
static const char *const same[][2] = { { "code_llama", "llama" }, { "iquestcoder", "llama" }, { "gpt-sw3", "gpt2" } };

static int refuse_type(const char *type, const char *from, struct meg_err *e)
{
    struct meg_str known = { 0 };
    int r;

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (meg_opt_is_listed(refused[i].types, type, NULL))
            return meg_fail(e, MEG_EFORMAT, "%s: model_type %s is not supported because of %s", from, type,
                            refused[i].why);
    for (const struct ckpt_hf_family *const *f = ckpt_hf_families; *f; f++)
        meg_str_printf(&known, "%s%s", known.n ? ", " : "", (*f)->model_type);
    r = meg_fail(e, MEG_EFORMAT, "%s: unsupported model_type %.40s; expected one of %s", from, type, known.s);
    meg_str_free(&known);
    return r;
}

/*
 * Return the model type of a class of transformers, such as BertForMaskedLM, or NULL.  The name of a class is that of a
 * model type, followed by a suffix.
 */
static const char *type_of_class(const char *class)
{
    static const char *const suffix[] = { "For", "LMHead", "Model", "DoubleHeads" };
    const size_t nsuffixes = sizeof suffix / sizeof *suffix;

    for (const struct ckpt_hf_family *const *f = ckpt_hf_families; *f; f++) {
        const char *name = (*f)->class_name, *end = strstr(name, "For");
        const size_t n = (size_t)((end ? end : strstr(name, "LMHead")) - name);

        for (size_t k = 0; strncmp(class, name, n) == 0 && k < nsuffixes; k++)
            if (strncmp(class + n, suffix[k], strlen(suffix[k])) == 0)
                return (*f)->model_type;
    }
    return NULL;
}

/* Return the model type to which a member of config.json belongs, or NULL. */
static const char *type_of_members(const json_t *config)
{
    static const char *const member[][2] = { { "type_vocab_size", "bert" }, { "n_embd", "gpt2" }, { "d_kv", "t5" } };

    for (size_t i = 0; i < sizeof member / sizeof *member; i++)
        if (json_object_get(config, member[i][0]))
            return member[i][1];
    return NULL;
}

/*
 * If config.json has no model_type, as before 2020, infer it from the class of the model or, if there is none, from
 * members that only one model type has, and set it.
 */
static void infer_model_type(json_t *config)
{
    const json_t *classes = json_object_get(config, "architectures");
    const char *class = json_string_value(json_array_get(classes, 0));
    const char *type = class ? type_of_class(class) : type_of_members(config);

    if (!json_object_get(config, "model_type") && type)
        json_object_set_new(config, "model_type", json_string(type));
}

int ckpt_hf_find_family(const struct ckpt_hf_family **out, json_t *config, const char *from, struct meg_err *e)
{
    const char *type = NULL;
    int r;

    infer_model_type(config);
    if ((r = meg_json_get_str(config, "model_type", MEG_JSON_REQUIRED, &type, from, e)) < 0)
        return r;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        type = strcmp(type, same[i][0]) == 0 ? same[i][1] : type;
    for (const struct ckpt_hf_family *const *f = ckpt_hf_families; *f; f++)
        if (strcmp((*f)->model_type, type) == 0) {
            *out = *f;
            return 0;
        }
    return refuse_type(type, from, e);
}
