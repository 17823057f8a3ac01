/* meg-convert: convert a checkpoint from one format to another, or describe it. */
#include <stdio.h>

#include "ckpt/convert.h"
#include "io/json.h"

static const struct meg_opt_unsupported unsupported[] = {
    { "target-expert-*", "mixtures of experts are not supported yet; see meg(7)" }, { 0 }
};

static const struct meg_opt ignored_opts[] = {
    MEG_IGNORED("megatron-path", "DIR", "no code of Megatron is run"),
    MEG_IGNORED("max-queue-size", "N", "there is no queue"),
    MEG_IGNORED("no-checking", NULL, "checks are always performed"),
    MEG_IGNORED("loader-transformer-impl", "NAME", "the names of norms of either implementation are recognized"),
    MEG_IGNORED("checkpoint-type", "TYPE", "the format of --load-dir is detected"),
    MEG_IGNORED("model-size", "NAME", "the sizes of the model are read from the checkpoint"),
    MEG_IGNORED("tokenizer-model", "FILE", "the tokenizer's files in --load-dir are copied"),
    MEG_IGNORED("bf16", NULL, "--params-dtype sets the dtype"),
    MEG_IGNORED("fp16", NULL, "--params-dtype sets the dtype"),
    { 0 }
};

static int describe(const struct meg_convert_conf *c, struct meg_err *e)
{
    struct meg_ckpt *ckpt = NULL;
    struct meg_str text = { 0 };
    json_t *about;
    int r;

    if ((r = meg_ckpt_open(&ckpt, c->info, c->ckpt_step, e)) < 0 || (c->verify && (r = meg_ckpt_verify(ckpt, e)) < 0) ||
        (r = meg_ckpt_describe(&about, ckpt, e)) < 0)
        goto out;
    if (c->json) {
        meg_json_dump(about, 0, &text);
        puts(text.s);
    } else {
        meg_ckpt_format_description(&text, about);
        fputs(text.s, stdout);
    }
    json_decref(about);
out:
    meg_str_free(&text);
    meg_ckpt_close(ckpt);
    return r;
}

int main(int argc, char **argv)
{
    struct meg_convert_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "convert", meg_convert_opts, &c },
                                           { "ignored", ignored_opts, NULL },
                                           { 0 } };
    struct meg_err e;

    meg_opt_set_unsupported(unsupported);
    meg_opt_parse(groups, "[options] --load-dir DIR --save-dir DIR | --info DIR",
                  "Convert a checkpoint to another format, or describe it.", argc, argv);
    if (meg_convert_check(&c, &e) < 0)
        meg_usage("%s", e.msg);
    if ((c.info ? describe(&c, &e) : meg_convert(&c, &e)) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
