/* request.c - generation options of one prompt: number of tokens, sampling, stop strings. */
#include "infer/request.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "io/json.h"

struct member {
    const char *name, *allowed;
    int (*set)(struct meg_request *q, const struct member *m, const json_t *value);
    size_t offset; /* byte offset in struct meg_request */
    double min, max;
    bool clears_greedy; /* setting this option in a line overrides --greedy */
};

static bool is_in_range(const struct member *m, const json_t *value)
{
    return json_number_value(value) >= m->min && json_number_value(value) <= m->max;
}

static int set_integer(struct meg_request *q, const struct member *m, const json_t *value)
{
    if (!json_is_integer(value) || !is_in_range(m, value))
        return -1;
    *(int64_t *)(void *)((char *)q + m->offset) = json_integer_value(value);
    return 0;
}

static int set_number(struct meg_request *q, const struct member *m, const json_t *value)
{
    if (!json_is_number(value) || !is_in_range(m, value))
        return -1;
    *(double *)(void *)((char *)q + m->offset) = json_number_value(value);
    return 0;
}

static int set_seed(struct meg_request *q, const struct member *m, const json_t *value)
{
    q->has_seed = true;
    return set_integer(q, m, value);
}

static int add_stop(struct meg_request *q, const json_t *value)
{
    if (json_string_length(value) == 0)
        return -1;
    q->stop = meg_realloc_array(q->stop, q->nstop + 1, sizeof *q->stop);
    q->stop[q->nstop] = (struct meg_str){ 0 };
    meg_str_add(&q->stop[q->nstop++], json_string_value(value), json_string_length(value));
    return 0;
}

static int set_stop(struct meg_request *q, const struct member *m, const json_t *value)
{
    const json_t *x;
    size_t i;

    (void)m;
    if (!json_is_array(value))
        return add_stop(q, value);
    json_array_foreach(value, i, x)
    {
        if (add_stop(q, x) < 0)
            return -1;
    }
    return 0;
}

static const struct member members[] = {
    { "max_tokens", "an integer from 1 to 2147483647", set_integer, offsetof(struct meg_request, max_tokens), 1,
      INT32_MAX, false },
    { "stop", "a string or an array of strings, none of them empty", set_stop, 0, 0, 0, false },
    { "temperature", "a number from 0 (greedy) to 100", set_number, offsetof(struct meg_request, sampling.temperature),
      0, 100, true },
    { "top_k", "an integer from 0 to the size of the vocabulary", set_integer,
      offsetof(struct meg_request, sampling.top_k), 0, INT32_MAX, true },
    { "top_p", "a number from 0 to 1", set_number, offsetof(struct meg_request, sampling.top_p), 0, 1, true },
    { "seed", "an integer from 0 to 4294967295", set_seed, offsetof(struct meg_request, sampling.seed), 0, UINT32_MAX,
      false },
};

void meg_request_init(struct meg_request *q, const struct meg_request *defaults)
{
    MEG_ASSERT_EQ(defaults->nstop, 0);
    *q = *defaults;
}

void meg_request_free(struct meg_request *q)
{
    for (size_t i = 0; i < q->nstop; i++)
        meg_str_free(&q->stop[i]);
    free(q->stop);
    *q = (struct meg_request){ 0 };
}

int meg_request_set(struct meg_request *q, const char *name, const json_t *value, struct meg_err *e)
{
    const struct member *m = members, *end = members + sizeof members / sizeof *members;
    struct meg_str found = { 0 };
    int r;

    while (m < end && strcmp(m->name, name) != 0)
        m++;
    if (m == end)
        return 0;
    if (m->clears_greedy)
        q->sampling.greedy = false;
    if (m->set(q, m, value) == 0)
        return 1;
    meg_json_dump(value, 0, &found);
    r = meg_fail(e, MEG_EFORMAT, "\"%s\" is %.60s%s; it must be %s", name, found.s, found.n > 60 ? "..." : "",
                 m->allowed);
    meg_str_free(&found);
    return r;
}

int meg_request_check(struct meg_request *q, int64_t unpadded_vocab, struct meg_err *e)
{
    struct meg_err why;

    if (meg_sampling_check(&q->sampling, unpadded_vocab, &why) < 0)
        return meg_fail(e, MEG_EFORMAT, "%s", why.msg);
    return 0;
}

void meg_request_add_names(struct meg_str *out)
{
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        meg_str_printf(out, ", \"%s\"", members[i].name);
}
