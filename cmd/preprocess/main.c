/* meg-preprocess - turn JSON lines into token datasets. */
#include "base/err.h"
#include "base/opt.h"
#include "data/preprocess.h"
#include "text/tokenizer.h"
#include "text/uclass.h"

int main(int argc, char **argv)
{
    struct meg_preprocess_conf c;
    struct meg_tok_conf tc;
    const struct meg_optgroup groups[] = { { "preprocess", meg_preprocess_opts, &c },
                                           { "tokenizer", meg_tok_opts, &tc },
                                           { 0 } };
    struct meg_tokenizer *tok;
    struct meg_err e;
    int r;

    meg_opt_add_version_line(meg_unicode_version());
    meg_opt_parse(groups, "[options] --input FILE... --output-prefix PREFIX --tokenizer-type TYPE",
                  "Turn the texts of JSON lines into token datasets.", argc, argv);
    if (meg_tokenizer_open(&tok, &tc, &e) < 0)
        meg_die_err(&e);
    r = meg_preprocess(&c, tok, &e);
    meg_tokenizer_close(tok);
    if (r < 0)
        meg_die_err(&e);
    return meg_finish();
}
