/* model_type.c - find the family of a Hugging Face model by its config.json. */
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

const struct ckpt_hf_family *const ckpt_hf_families[] = { &ckpt_hf_gpt2,          &ckpt_hf_llama, &ckpt_hf_mistral,
                                                          &ckpt_hf_qwen2,         &ckpt_hf_qwen3, &ckpt_hf_bert,
                                                          &ckpt_hf_megatron_bert, &ckpt_hf_t5,    NULL };

/*
 * Return the model type of a class of transformers, such as BertForMaskedLM, or NULL.  The name of a class is that of a
 * model type, followed by a suffix.
 */
static const char *type_of_class(const char *class)
{
    static const char *const suffix[] = { "For", "LMHead", "Model", "DoubleHeads" };

    for (const struct ckpt_hf_family *const *f = ckpt_hf_families; *f; f++) {
        const size_t n = strlen((*f)->class_prefix);

        for (size_t k = 0; strncmp(class, (*f)->class_prefix, n) == 0 && k < sizeof suffix / sizeof *suffix; k++)
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
    struct meg_str known = { 0 };
    const char *type = NULL;
    int r;

    infer_model_type(config);
    if ((r = meg_json_get_str(config, "model_type", MEG_JSON_REQUIRED, &type, from, e)) < 0)
        return r;
    for (const struct ckpt_hf_family *const *f = ckpt_hf_families; *f; f++) {
        if (strcmp((*f)->model_type, type) == 0) {
            *out = *f;
            goto out;
        }
        meg_str_printf(&known, "%s%s", known.n ? ", " : "", (*f)->model_type);
    }
    r = meg_fail(e, MEG_EFORMAT, "%s: unsupported model_type %.40s; expected one of %s", from, type, known.s);
out:
    meg_str_free(&known);
    return r;
}
