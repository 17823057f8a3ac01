/*
 * presets.c - the sizes of published models.  A preset consists of the members of the model's config.json that
 * determine the model; the rows of the model type convert them to options, as when the model is imported.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

/* clang-format off */
/* vocabulary, width, layers, heads, positions */
#define GPT2(v, h, l, a, p) \
    "{\"model_type\":\"gpt2\",\"vocab_size\":" #v ",\"n_embd\":" #h ",\"n_layer\":" #l ",\"n_head\":" #a "," \
    "\"n_positions\":" #p "}"
/* model type, vocabulary, width, inner width of the MLP, layers, heads, heads of keys and values, positions, others */
#define LLAMA(type, v, h, f, l, a, g, p, others) \
    "{\"model_type\":\"" type "\",\"vocab_size\":" #v ",\"hidden_size\":" #h ",\"intermediate_size\":" #f "," \
    "\"num_hidden_layers\":" #l ",\"num_attention_heads\":" #a ",\"num_key_value_heads\":" #g "," \
    "\"max_position_embeddings\":" #p "," others "}"
#define EPS(x) "\"rms_norm_eps\":" #x
#define BASE(x) "\"rope_theta\":" #x
#define TIED ",\"tie_word_embeddings\":true"
#define UNTIED ",\"tie_word_embeddings\":false"
#define LLAMA3(factor) \
    EPS(1e-5) "," BASE(5e5) ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":" #factor "," \
    "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"
#define QWEN2 BASE(1e6) "," EPS(1e-6)
#define QWEN3 BASE(1e6) "," EPS(1e-6) ",\"head_dim\":128"

static const struct {
    const char *name, *config;
} presets[] = {
    { "gpt2", GPT2(50257, 768, 12, 12, 1024) },
    { "gpt2-medium", GPT2(50257, 1024, 24, 16, 1024) },
    { "gpt2-large", GPT2(50257, 1280, 36, 20, 1024) },
    { "gpt2-xl", GPT2(50257, 1600, 48, 25, 1024) },
    { "llama-2-7b", LLAMA("llama", 32000, 4096, 11008, 32, 32, 32, 4096, EPS(1e-5) UNTIED) },
    { "llama-2-13b", LLAMA("llama", 32000, 5120, 13824, 40, 40, 40, 4096, EPS(1e-5) UNTIED) },
    { "llama-2-70b", LLAMA("llama", 32000, 8192, 28672, 80, 64, 8, 4096, EPS(1e-5) UNTIED) },
    { "llama-3-8b", LLAMA("llama", 128256, 4096, 14336, 32, 32, 8, 8192, EPS(1e-5) "," BASE(5e5) UNTIED) },
    { "llama-3-70b", LLAMA("llama", 128256, 8192, 28672, 80, 64, 8, 8192, EPS(1e-5) "," BASE(5e5) UNTIED) },
    { "llama-3.1-8b", LLAMA("llama", 128256, 4096, 14336, 32, 32, 8, 131072, LLAMA3(8) UNTIED) },
    { "llama-3.1-70b", LLAMA("llama", 128256, 8192, 28672, 80, 64, 8, 131072, LLAMA3(8) UNTIED) },
    { "llama-3.1-405b", LLAMA("llama", 128256, 16384, 53248, 126, 128, 8, 131072, LLAMA3(8) UNTIED) },
    { "llama-3.2-1b", LLAMA("llama", 128256, 2048, 8192, 16, 32, 8, 131072, LLAMA3(32) TIED) },
    { "llama-3.2-3b", LLAMA("llama", 128256, 3072, 8192, 28, 24, 8, 131072, LLAMA3(32) TIED) },
    { "tinyllama-1.1b", LLAMA("llama", 32000, 2048, 5632, 22, 32, 4, 2048, EPS(1e-5) UNTIED) },
    { "smollm2-135m", LLAMA("llama", 49152, 576, 1536, 30, 9, 3, 8192, EPS(1e-5) "," BASE(1e5) TIED) },
    { "smollm2-360m", LLAMA("llama", 49152, 960, 2560, 32, 15, 5, 8192, EPS(1e-5) "," BASE(1e5) TIED) },
    { "smollm2-1.7b", LLAMA("llama", 49152, 2048, 8192, 24, 32, 32, 8192, EPS(1e-5) "," BASE(1.3e5) TIED) },
    { "mistral-7b-v0.3", LLAMA("mistral", 32768, 4096, 14336, 32, 32, 8, 32768,
                               EPS(1e-5) "," BASE(1e6) ",\"sliding_window\":null" UNTIED) },
    { "qwen2.5-0.5b", LLAMA("qwen2", 151936, 896, 4864, 24, 14, 2, 32768, QWEN2 TIED) },
    { "qwen2.5-1.5b", LLAMA("qwen2", 151936, 1536, 8960, 28, 12, 2, 131072, QWEN2 TIED) },
    { "qwen2.5-3b", LLAMA("qwen2", 151936, 2048, 11008, 36, 16, 2, 32768, QWEN2 TIED) },
    { "qwen2.5-7b", LLAMA("qwen2", 152064, 3584, 18944, 28, 28, 4, 131072, QWEN2 UNTIED) },
    { "qwen2.5-14b", LLAMA("qwen2", 152064, 5120, 13824, 48, 40, 8, 131072, BASE(1e6) "," EPS(1e-5) UNTIED) },
    { "qwen2.5-32b", LLAMA("qwen2", 152064, 5120, 27648, 64, 40, 8, 131072, BASE(1e6) "," EPS(1e-5) UNTIED) },
    { "qwen2.5-72b", LLAMA("qwen2", 152064, 8192, 29568, 80, 64, 8, 131072, BASE(1e6) "," EPS(1e-5) UNTIED) },
    { "qwen3-0.6b", LLAMA("qwen3", 151936, 1024, 3072, 28, 16, 8, 40960, QWEN3 TIED) },
    { "qwen3-1.7b", LLAMA("qwen3", 151936, 2048, 6144, 28, 16, 8, 40960, QWEN3 TIED) },
    { "qwen3-4b", LLAMA("qwen3", 151936, 2560, 9728, 36, 32, 8, 40960, QWEN3 TIED) },
    { "qwen3-8b", LLAMA("qwen3", 151936, 4096, 12288, 36, 32, 8, 40960, QWEN3 UNTIED) },
    { "qwen3-14b", LLAMA("qwen3", 151936, 5120, 17408, 40, 40, 8, 40960, QWEN3 UNTIED) },
    { "qwen3-32b", LLAMA("qwen3", 151936, 5120, 25600, 64, 64, 8, 40960, QWEN3 UNTIED) },
};
/* clang-format on */
enum { NPRESETS = sizeof presets / sizeof *presets };

static int read_preset(struct meg_model_conf *m, int i, struct meg_err *e)
{
    const struct ckpt_hf_family *family = NULL;
    json_t *config = NULL;
    int r;

    if ((r = meg_json_parse(&config, presets[i].config, strlen(presets[i].config), presets[i].name, e)) == 0 &&
        (r = ckpt_hf_find_family(&family, config, presets[i].name, e)) == 0)
        r = ckpt_hf_read_config(m, family, config, presets[i].name, e);
    json_decref(config);
    return r;
}

int meg_ckpt_preset_options(struct meg_str *out, const char *name, struct meg_err *e)
{
    struct meg_model_conf m = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &m }, { 0 } };
    int i = 0, r;

    while (i < NPRESETS && strcmp(presets[i].name, name) != 0)
        i++;
    if (i == NPRESETS)
        return meg_fail(e, MEG_EUSAGE, "unknown preset %.40s; --list-presets prints the names", name);
    if ((r = read_preset(&m, i, e)) == 0)
        meg_opt_dump(groups, out);
    return r;
}

int meg_ckpt_print_presets(FILE *f, struct meg_err *e)
{
    int r = 0;

    for (int i = 0; i < NPRESETS && r == 0; i++) {
        struct meg_model_conf m = { 0 };
        struct meg_params params;

        if ((r = read_preset(&m, i, e)) < 0 || (r = meg_model_conf_check(&m, e)) < 0)
            break;
        meg_model_params(&params, &m, &meg_mesh_one);
        fprintf(f, "%-18s %12" PRId64 " parameters, vocabulary of %" PRId64 " tokens\n", presets[i].name, params.numel,
                m.vocab_size);
        meg_params_free(&params);
    }
    return r;
}
