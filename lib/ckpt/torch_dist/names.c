/* names.c - names of tensors in distributed checkpoints. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "ckpt/megatron/megatron.h"
#include "ckpt/torch_dist/torch_dist.h"

static bool begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

const char *dist_skip_wrappers(const char *name)
{
    if (begins_with(name, "model."))
        name += strlen("model.");
    while (begins_with(name, "module."))
        name += strlen("module.");
    return name;
}

bool dist_is_model_name(const char *name)
{
    static const char *const other[] = { "optimizer.", "chained_", "rng_state", "rerun_state_machine", "common_state" };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (begins_with(name, other[i]))
            return false;
    return !strstr(name, "_extra_state");
}

/* Return the part of a name after the stack and "layers."; NULL if the tensor is not in a layer. */
static const char *skip_layers(const char *name)
{
    return begins_with(name, "decoder.layers.") || begins_with(name, "encoder.layers.") ? name + 15 : NULL;
}

/* Return the length of the layer number and the dot at the beginning of `rest`, or 0. */
static size_t layer_length(const char *rest)
{
    const size_t n = strspn(rest, "0123456789");

    return n > 0 && rest[n] == '.' ? n + 1 : 0;
}

bool dist_is_stacked(const char *name)
{
    const char *rest = skip_layers(name);

    return rest && layer_length(rest) == 0;
}

char *dist_native_name(const char *name, int64_t layer, int *half)
{
    const char *rest = skip_layers(name);
    struct meg_str out = { 0 };
    size_t n;

    *half = -1;
    if (!rest)
        return meg_strdup(name);
    n = layer_length(rest);
    meg_str_add(&out, name, (size_t)(rest - name) + n);
    if (n == 0)
        meg_str_printf(&out, "%" PRId64 ".", layer);
    rest += n;
    if (!ckpt_replace_prefix(&out, rest, ckpt_te_names, true))
        meg_str_printf(&out, "%s", rest);
    /* singleton_local_shards and fsdp_dtensor store gate and up apart */
    n = strlen(rest);
    if (begins_with(rest, "mlp.linear_fc1.") && n > 2 && rest[n - 2] == '_' &&
        (rest[n - 1] == 'w' || rest[n - 1] == 'v')) {
        *half = rest[n - 1] == 'v';
        out.n -= 2;
        out.s[out.n] = 0;
    }
    return out.s;
}
