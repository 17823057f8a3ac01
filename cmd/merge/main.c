/* meg-merge - concatenate token datasets into one. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/indexed/indexed.h"
#include "data/indexed/list_datasets.h"
#include "option/opt.h"

struct conf {
    const char *input, *prefix;
    struct meg_str_list datasets;
    bool multimodal;
};
static const struct meg_opt merge_opts[] = {
    { "input", 0, MEG_STR(struct conf, input), "DIR", NULL, "merge all datasets in DIR, sorted by name" },
    { "datasets", 0, MEG_LIST(struct conf, datasets), "PREFIX...", NULL,
      "merge these datasets, named without .bin and .idx, in this order" },
    { "output-prefix", 0, MEG_STR(struct conf, prefix), "PREFIX", NULL, "write PREFIX.bin and PREFIX.idx" },
    { "multimodal", 0, MEG_BOOL(struct conf, multimodal), NULL, "no",
      "merge multimodal datasets, which have a mode for each sequence" },
    { 0 }
};

/* Return whether `folder` is the directory of PREFIX.bin and PREFIX.idx, which need not exist. */
static bool is_in_folder(const char *prefix, const char *folder)
{
    const char *slash = strrchr(prefix, '/');
    char *dir = slash ? meg_strndup(prefix, (size_t)(slash - prefix) + 1) : meg_strdup(".");
    struct stat a, b;
    bool is_same = stat(dir, &a) == 0 && stat(folder, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;

    free(dir);
    return is_same;
}

static int append(struct meg_indexed_writer **w, const char *prefix, const struct conf *c, struct meg_err *e)
{
    struct meg_indexed *d;
    int r;

    if ((r = meg_indexed_open(&d, prefix, e)) < 0)
        return r;
    if (d->sequences > 0 && d->has_modes != c->multimodal)
        r = meg_fail(e, MEG_EFORMAT, "%s.idx: %s", prefix,
                     c->multimodal ? "the sequences have no modes; remove --multimodal"
                                   : "the sequences have modes; add --multimodal");
    else if (*w || (r = meg_indexed_create(w, c->prefix, d->dtype, e)) == 0)
        r = meg_indexed_append_dataset(*w, d, e);
    if (r == 0)
        meg_info("%s: %" PRId64 " documents, %" PRId64 " tokens", prefix, d->documents, d->tokens);
    meg_indexed_close(d);
    return r;
}

static int run(const struct conf *c, struct meg_err *e)
{
    struct meg_indexed_writer *w = NULL;
    struct meg_prefix_list in = { 0 };
    int r = 0;

    for (int64_t i = 0; i < c->datasets.n; i++)
        meg_prefix_list_add(&in, meg_strdup(c->datasets.v[i]));
    if (c->input)
        r = meg_list_datasets(&in, c->input, e);
    for (size_t i = 0; i < in.n && r == 0; i++)
        r = append(&w, in.v[i], c, e);
    if (r == 0)
        r = meg_indexed_commit(&w, 1, e);
    meg_indexed_abandon(w);
    meg_prefix_list_free(&in);
    return r;
}

int main(int argc, char **argv)
{
    struct conf c = { 0 };
    const struct meg_optgroup groups[] = { { "merge", merge_opts, &c }, { 0 } };
    struct meg_err e;

    meg_opt_parse(groups, "[options] (--input DIR | --datasets PREFIX...) --output-prefix PREFIX",
                  "Concatenate token datasets into one.", argc, argv);
    if (!c.prefix)
        meg_usage("--output-prefix is required");
    if (!c.input == (c.datasets.n == 0))
        meg_usage("specify either --input or --datasets");
    if (c.input && is_in_folder(c.prefix, c.input))
        meg_usage("--output-prefix must be outside of the --input directory, because a second run would merge the "
                  "result, too");
    if (run(&c, &e) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
