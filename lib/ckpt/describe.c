/* describe.c - describe a checkpoint as JSON, for meg-convert --info. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/internal.h"
#include "model/family.h"

static json_t *describe_tensor(const struct meg_ckpt *c, const struct meg_st *st, const struct meg_st_tensor *t)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->dim[i]));
    return json_pack("{s:s,s:o,s:s,s:I,s:s}", "name", t->name, "shape", shape, "dtype", t->dtype, "bytes",
                     (json_int_t)t->nbytes, "file", st->path + strlen(c->path) + 1);
}

/* Convert the lines `NAME = VALUE` of an option dump to a JSON object that maps names to values. */
static json_t *describe_options(const char *dump)
{
    json_t *all = json_object();

    for (const char *line = dump; *line;) {
        const size_t n = strcspn(line, "\n");
        const char *eq = memchr(line, '=', n);

        if (*line != '#' && eq && eq - line > 1 && (size_t)(eq - line) + 2 <= n)
            json_object_setn_new_nocheck(all, line, (size_t)(eq - line) - 1,
                                         json_stringn_nocheck(eq + 2, (size_t)(line + n - eq) - 2));
        line += n + (line[n] == '\n');
    }
    return all;
}

static void describe_files(json_t *tensors, const struct meg_ckpt *c)
{
    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++)
            json_array_append_new(tensors, describe_tensor(c, c->file[i], &c->file[i]->t[k]));
}

/* Return the number of parameters of the model that are not in a missing head. */
static int64_t count_params(const struct meg_ckpt *c, const struct meg_params *p)
{
    int64_t n = p->numel;

    for (int i = 0; i < p->n; i++)
        n -= ckpt_is_missing_head(c, p->row[i].name) ? p->row[i].numel : 0;
    return n;
}

static void describe_missing_head(json_t *o, const struct meg_ckpt *c)
{
    struct meg_str names = { 0 };

    if (!c->lacks_head)
        return;
    ckpt_list_missing_head(&names, c);
    json_object_set_new(o, "missing", json_string(names.s));
    meg_str_free(&names);
}

int meg_ckpt_describe(json_t **out, const struct meg_ckpt *c, struct meg_err *e)
{
    json_t *o, *tensors;
    struct meg_ckpt optim;
    struct meg_model_conf m;
    struct meg_params p = { 0 };
    int r;

    if ((r = meg_ckpt_model_conf(c, &m, e)) < 0 || (r = ckpt_open_optim(&optim, c, e)) < 0)
        return r;
    o = json_object();
    tensors = json_array();
    meg_model_params(&p, &m, &meg_mesh_one);
    json_object_set_new(o, "format", json_string(c->format->name));
    json_object_set_new(o, "path", json_string_nocheck(c->path));
    json_object_set_new(o, "iteration", c->iteration == MEG_CKPT_RELEASE ? json_null() : json_integer(c->iteration));
    json_object_set_new(o, "model_type", json_string(meg_family_of(&m)->title));
    json_object_set_new(o, "parameters", json_integer(count_params(c, &p)));
    describe_missing_head(o, c);
    json_object_set_new(o, "vocab_size", json_integer(c->vocab_size));
    json_object_set_new(o, "eod_id", c->eos_ids.n > 0 ? json_integer(c->eos_ids.v[0]) : json_null());
    json_object_set_new(o, "options", describe_options(c->options));
    describe_files(tensors, c);
    describe_files(tensors, &optim);
    json_object_set_new(o, "tensors", tensors);
    meg_params_free(&p);
    ckpt_close_files(&optim);
    *out = o;
    return 0;
}

static void format_tensor(struct meg_str *out, const json_t *t)
{
    char *shape = json_dumps(json_object_get(t, "shape"), JSON_COMPACT);

    meg_str_printf(out, "%-60s %-5s %-16s %12" PRId64 "  %s\n", json_string_value(json_object_get(t, "name")),
                   json_string_value(json_object_get(t, "dtype")), shape,
                   (int64_t)json_integer_value(json_object_get(t, "bytes")),
                   json_string_value(json_object_get(t, "file")));
    free(shape);
}

void meg_ckpt_format_description(struct meg_str *out, json_t *about)
{
    const char *key, *name;
    json_t *value, *member;
    size_t i;

    json_object_foreach(about, key, value)
    {
        if (json_is_object(value)) {
            meg_str_printf(out, "\n%s\n", key);
            json_object_foreach(value, name, member)
            {
                meg_str_printf(out, "    %s = %s\n", name, json_string_value(member));
            }
        } else if (json_is_array(value)) {
            meg_str_printf(out, "\n%zu %s: name, type, shape, bytes, file\n", json_array_size(value), key);
            json_array_foreach(value, i, member)
            {
                format_tensor(out, member);
            }
        } else if (json_is_string(value)) {
            meg_str_printf(out, "%-12s%s\n", key, json_string_value(value));
        } else if (json_is_integer(value)) {
            meg_str_printf(out, "%-12s%" PRId64 "\n", key, (int64_t)json_integer_value(value));
        } else {
            meg_str_printf(out, "%-12s-\n", key);
        }
    }
}
