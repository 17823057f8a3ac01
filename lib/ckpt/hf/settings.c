/* settings.c - members of Hugging Face's config.json that several model families have. */
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

int ckpt_hf_check_fixed(const json_t *config, const struct ckpt_hf_fixed *fixed, const char *from, struct meg_err *e)
{
    for (; fixed->key; fixed++) {
        bool value = fixed->value;
        int r = meg_json_get_bool(config, fixed->key, MEG_JSON_OPTIONAL, &value, from, e);

        if (r < 0)
            return r;
        if (value != fixed->value)
            return meg_fail(e, MEG_EFORMAT, "%s: %s is %s, but only %s is supported", from, fixed->key,
                            value ? "true" : "false", fixed->value ? "true" : "false");
    }
    return 0;
}

int ckpt_hf_read_gelu(bool *is_tanh, const json_t *config, const char *key, const char *def, const char *from,
                      struct meg_err *e)
{
    static const char *const tanh_forms[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast", NULL };
    const char *name = def;
    int r = meg_json_get_str(config, key, MEG_JSON_OPTIONAL, &name, from, e);

    if (r < 0)
        return r;
    *is_tanh = false;
    for (const char *const *p = tanh_forms; *p && !*is_tanh; p++)
        *is_tanh = strcmp(name, *p) == 0;
    if (!*is_tanh && strcmp(name, "gelu") != 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: unsupported %s %.40s; expected gelu, gelu_new, gelu_pytorch_tanh or gelu_fast", from, key,
                        name);
    return 0;
}
