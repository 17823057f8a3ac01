/* meg-convert: convert a checkpoint from one format to another, or describe it. */
#include <stdio.h>
#include "ckpt/convert.h"
#include "io/json.h"

static const struct meg_opt_names unsupported[] = {
    { "not supported yet: mixture of experts; see NOT YET in meg(7)", "target-expert-*" }, { 0 }
};

static const struct meg_opt_names ignored[] = {
    { "no code of Megatron is run", "megatron-path=DIR" },
    { "one process reads and writes the checkpoint, without a queue", "max-queue-size=N" },
    { "checks are always performed", "no-checking" },
    { "the names of norms of either implementation are recognized", "loader-transformer-impl=NAME" },
    { "the format of --load-dir is detected", "checkpoint-type=TYPE" },
    { "the parallel layout of --load-dir is detected", "pipeline-model-parallel-size=N" },
    { "the checkpoint stores the sequence length", "seq-length=N" },
    { "the sizes of the model are read from the checkpoint", "model-size=NAME" },
    { "the tokenizer's files in --load-dir are copied", "tokenizer-type=TYPE tokenizer-model=FILE merge-file=FILE" },
    { "--params-dtype sets the dtype", "bf16 fp16" },
    { 0 }
};

static int describe(const struct meg_convert_conf *c, struct meg_err *e)
{
    struct meg_ckpt *ckpt = NULL;
    struct meg_str text = { 0 };
    json_t *about;
    int r;

    if ((r = meg_ckpt_open_given(&ckpt, c->info, c->ckpt_step, &c->model, e)) < 0 ||
        (c->verify && (r = meg_ckpt_verify(ckpt, e)) < 0) || (r = meg_ckpt_describe(&about, ckpt, e)) < 0)
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
                                           { "model shape, as in the checkpoint", meg_given_model_opts(), &c.model },
                                           { "old names", meg_convert_old_opts, NULL },
                                           { 0 } };
    struct meg_err e;

    meg_opt_set_ignored(ignored);
    meg_opt_set_unsupported(unsupported);
    meg_opt_parse(groups, "[options] --load-dir DIR --save-dir DIR | --info DIR",
                  "Convert a checkpoint to another format, or describe it.", argc, argv);
    if (meg_convert_check(&c, &e) < 0)
        meg_usage("%s", e.msg);
    if ((c.info ? describe(&c, &e) : meg_convert(&c, &e)) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
