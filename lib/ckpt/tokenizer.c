/* The tokenizer's files, kept with a model. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/ckpt.h"

int meg_ckpt_tokenizer_read(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c,
                            const struct meg_tokenizer *tok, struct meg_err *e)
{
    struct meg_tok_conf conf = *c;
    const bool is_bert = c->type && !strncmp(c->type, "BertWordPiece", strlen("BertWordPiece"));
    const int other = is_bert ? MEG_TOK_VOCAB : MEG_TOK_BERT;
    char *own[3];
    int r = 0;

    meg_tok_find_files(&conf, own);
    t->eod = tok ? meg_tokenizer_eod(tok) : -1;
    for (int i = 0; i < MEG_TOK_FILES && r == 0; i++)
        if (i != other && *meg_tok_path(&conf, i))
            r = meg_read_regular(*meg_tok_path(&conf, i), &t->file[i], e);
    for (int i = 0; i < 3; i++)
        free(own[i]);
    return r;
}

void meg_ckpt_tokenizer_free(struct meg_ckpt_tokenizer *t)
{
    for (int i = 0; i < MEG_TOK_FILES; i++)
        meg_str_free(&t->file[i]);
}
