/* inspect.h - print a token dataset: its counts and types (--info), or its documents as ids and text (--decode). */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include "base/err.h"
#include "option/opt.h"
#include "tokenizer/tokenizer.h"

struct meg_inspect_conf {
    const char *info;            /* PREFIX, or NULL */
    struct meg_str_list decode;  /* PREFIX [FIRST[:COUNT]] */
    struct meg_str_list explain; /* PATH [TEXT] */
    bool json;
};
extern const struct meg_opt meg_inspect_opts[];

/*
 * meg_inspect_info - print format, token type, counts and lengths of the dataset c->info
 * meg_inspect_decode - print documents of the dataset c->decode, each followed by a newline
 *   tok  decodes the ids into text; NULL: print only ids, which requires c->json
 * With c->json, each line is a JSON object.
 * Both functions return the errors of meg_indexed_open.  meg_inspect_decode returns MEG_EUSAGE for an invalid
 * FIRST:COUNT.  It also returns the errors of meg_indexed_get and meg_tokenizer_decode.
 */
int meg_inspect_info(const struct meg_inspect_conf *c, FILE *out, struct meg_err *e);
int meg_inspect_decode(const struct meg_inspect_conf *c, const struct meg_tokenizer *tok, FILE *out, struct meg_err *e);
