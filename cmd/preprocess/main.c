/* meg-preprocess - tokenize JSON lines into token datasets, and inspect token datasets. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/err.h"
#include "data/indexed/inspect.h"
#include "option/opt.h"
#include "preprocess/preprocess.h"
#include "tokenizer/tokenizer.h"
#include "unicode/char_class.h"

/* Options of the preprocessing programs of BigScience's Megatron-DeepSpeed. */
static const struct meg_opt old_opts[] = { MEG_RENAMED("columns", "KEY...", "json-keys"), { 0 } };

static const struct meg_opt_names ignored[] = {
    { "the vocabulary is not padded", "make-vocab-size-divisible-by=N pad-vocab-size-to=N" },
    { "--workers sets the number of threads of one process", "torch-backend=gloo|mpi local-rank=N" },
    { "the output is written once, in the order of the input", "merge=parallel|serial|both scratch=DIR" },
    { 0 }
};

static const struct meg_opt_names unsupported[] = {
    { "use meg-merge(1) to merge datasets", "datasets" },
    { "the input has no splits; use meg-train --split", "split=train" },
    { "select lines before, for example with: head -n N FILE | meg-preprocess --input -", "count" },
    { "shuffle lines before, for example with: shuf FILE | meg-preprocess --input -", "shuffle seed" },
    { 0 }
};

/* Describe the tokenizer in explain->v[0], and encode explain->v[1] or a default text. */
static int explain_tokenizer(const struct meg_inspect_conf *in, struct meg_tok_conf *tc, struct meg_err *e)
{
    const char *sample = in->explain.n > 1 ? in->explain.v[1] : "Hello, world! It's 1234.";
    struct meg_tokenizer *tok = NULL;
    struct meg_str out = { 0 };
    char *owned[2];
    int r = meg_tok_guess(tc, in->explain.v[0], owned, e);

    if (r == 0 && (r = meg_tokenizer_open(&tok, tc, e)) == 0 &&
        (r = meg_tokenizer_explain(tok, sample, in->json, &out, e)) == 0)
        fwrite(out.s, 1, out.n, stdout);
    meg_tokenizer_close(tok);
    meg_str_free(&out);
    free(owned[0]);
    free(owned[1]);
    return r;
}

int main(int argc, char **argv)
{
    struct meg_preprocess_conf c;
    struct meg_tok_conf tc = { 0 };
    struct meg_inspect_conf in;
    bool has_tokenizer;
    const struct meg_optgroup groups[] = { { "preprocess", meg_preprocess_opts, &c },
                                           { "inspect", meg_inspect_opts, &in },
                                           { "tokenizer", meg_tok_opts, &tc },
                                           { "old names", old_opts, NULL },
                                           { 0 } };
    struct meg_tokenizer *tok = NULL;
    struct meg_err e;
    int r;

    meg_opt_add_version_line(meg_unicode_version());
    meg_opt_set_ignored(ignored);
    meg_opt_set_unsupported(unsupported);
    meg_opt_parse(groups,
                  "[options] --input FILE... --output-prefix PREFIX | "
                  "--decode PREFIX [FIRST[:COUNT]] | --info PREFIX | --explain PATH [TEXT]",
                  "Tokenize the texts of JSON lines into token datasets, or inspect one.", argc, argv);
    if ((c.input.n > 0) + (in.decode.n > 0) + (in.info != NULL) + (in.explain.n > 0) > 1)
        meg_usage("specify only one of --input, --decode, --info and --explain");
    if (in.explain.n > 2)
        meg_usage("--explain: found %" PRId64 " values, expected PATH and optionally TEXT", in.explain.n);
    if (in.decode.n > 2)
        meg_usage("--decode: found %" PRId64 " values, expected PREFIX and optionally FIRST[:COUNT]", in.decode.n);
    if (in.json && in.decode.n == 0 && !in.info && in.explain.n == 0)
        meg_usage("--json requires --decode, --info or --explain");
    /* without --tokenizer-type, the type is detected from the files */
    has_tokenizer = tc.type || tc.name_or_path || tc.tokenizer_model;
    if (in.decode.n > 0 && !in.json && !has_tokenizer)
        meg_usage("--decode requires --tokenizer-type to print text; with --json it prints token ids");
    if (!in.info && in.explain.n == 0 && (has_tokenizer || !(in.decode.n > 0 && in.json)) &&
        meg_tokenizer_open(&tok, &tc, &e) < 0)
        meg_die_err(&e);
    if (in.explain.n > 0)
        r = explain_tokenizer(&in, &tc, &e);
    else if (in.info)
        r = meg_inspect_info(&in, stdout, &e);
    else if (in.decode.n > 0)
        r = meg_inspect_decode(&in, tok, stdout, &e);
    else
        r = meg_preprocess(&c, tok, &e);
    meg_tokenizer_close(tok);
    if (r < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
