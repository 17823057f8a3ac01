#include "infer/reply.h"

#include <string.h>

#include "base/json.h"

void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n)
{
    int64_t i;

    meg_str_add(out, "[", 1);
    for (i = 0; i < n; i++)
        meg_str_printf(out, i ? ",%d" : "%d", ids[i]);
    meg_str_add(out, "]", 1);
}

void meg_json_add_floats(struct meg_str *out, const float *x, int64_t n)
{
    int64_t i;

    meg_str_add(out, "[", 1);
    for (i = 0; i < n; i++)
        meg_str_printf(out, i ? ",%.9g" : "%.9g", (double)x[i]);
    meg_str_add(out, "]", 1);
}

int meg_reply_json(struct meg_str *out, const struct meg_continuation *c, struct meg_detok *detok,
                   const struct meg_str *held, bool with_logprobs, struct meg_err *e)
{
    struct meg_str text = { 0 };
    size_t skip;
    int r;

    meg_str_add(out, "{", 1);
    if (detok) {
        if ((r = meg_detok_add(detok, c->ids, c->n, true, &text, e)) < 0) {
            meg_str_free(&text);
            return r;
        }
        meg_str_printf(out, "\"text\":");
        skip = held->n > 0 && text.n >= held->n && memcmp(text.s, held->s, held->n) == 0 ? held->n : 0;
        meg_json_add_string(out, text.s + skip, text.n - skip);
        meg_str_add(out, ",", 1);
        meg_str_free(&text);
    }
    meg_str_printf(out, "\"ids\":");
    meg_json_add_ids(out, c->ids, c->n);
    if (with_logprobs) {
        meg_str_printf(out, ",\"logprobs\":");
        meg_json_add_floats(out, c->logprob, c->n);
    }
    meg_str_printf(out, ",\"finish\":\"%s\"}\n", c->finish == MEG_STOPPED ? "stop" : "length");
    return MEG_OK;
}
