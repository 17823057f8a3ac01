/* meg-vocab - train a byte-level BPE or WordPiece vocabulary. */
#include <inttypes.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "file/lock.h"
#include "io/text_reader.h"
#include "option/opt.h"
#include "tokenizer/bpe/train.h"
#include "tokenizer/bpe/train_wordpiece.h"
#include "unicode/char_class.h"

enum vocab_type { VOCAB_GPT2, VOCAB_BERT_LOWER, VOCAB_BERT_CASE };

struct conf {
    struct meg_text_reader_conf texts;
    enum vocab_type type;
    const char *output_dir;
    int64_t vocab_size, min_frequency;
};

static const struct meg_opt own_opts[] = {
    { "output-dir", 0, MEG_STR(struct conf, output_dir), "DIR", NULL,
      "write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json, or vocab.txt, to DIR" },
    { "tokenizer-type", 0, MEG_ENUM(struct conf, type), "GPT2BPETokenizer|BertWordPieceLowerCase|BertWordPieceCase",
      "GPT2BPETokenizer", "train a vocabulary for this tokenizer: byte-level BPE or WordPiece" },
    { "vocab-size", 0, MEG_I64(struct conf, vocab_size), "N", "30000",
      "maximum number of tokens, including special tokens and single bytes or characters" },
    { "min-frequency", 0, MEG_I64(struct conf, min_frequency), "N", "0",
      "merge only pairs that occur at least N times" },
    { 0 }
};

static void check(const struct conf *c)
{
    if (!c->output_dir)
        meg_usage("--output-dir is required");
    if (c->type != VOCAB_GPT2 && (c->vocab_size <= MEG_WORDPIECE_NUM_SPECIAL || c->vocab_size > INT32_MAX))
        meg_usage("--vocab-size %" PRId64 ": must be from %d to %d; every vocabulary contains %d special tokens",
                  c->vocab_size, MEG_WORDPIECE_NUM_SPECIAL + 1, INT32_MAX, MEG_WORDPIECE_NUM_SPECIAL);
    if (c->type == VOCAB_GPT2 && (c->vocab_size < MEG_BPE_MIN_VOCAB_SIZE || c->vocab_size > INT32_MAX))
        meg_usage("--vocab-size %" PRId64 ": must be from %d to %d; every vocabulary contains <|endoftext|> and the "
                  "256 single bytes, %d tokens in all",
                  c->vocab_size, MEG_BPE_MIN_VOCAB_SIZE, INT32_MAX, MEG_BPE_MIN_VOCAB_SIZE);
    if (c->min_frequency < 0)
        meg_usage("--min-frequency %" PRId64 ": must be at least 0", c->min_frequency);
}

static int run(const struct conf *c, struct meg_err *e)
{
    struct meg_bpe_trainer trainer = { .is_wordpiece = c->type != VOCAB_GPT2,
                                       .basic = { .is_lower = c->type == VOCAB_BERT_LOWER } };
    struct meg_bpe_vocab vocab = { 0 };
    struct meg_text_reader *in = NULL;
    struct meg_lock lock = { 0 };
    struct meg_progress progress;
    struct meg_span text;
    double start_s = meg_now_s();
    int64_t nbytes = 0;
    int r;

    meg_progress_init(&progress, 10);
    if ((r = meg_text_reader_open(&in, &c->texts, e)) < 0 || (r = meg_lock_dir(&lock, c->output_dir, e)) < 0)
        goto out;
    while ((r = meg_text_reader_next(in, &text, e)) > 0) {
        if ((r = meg_bpe_trainer_count(&trainer, text.s, text.n, e)) < 0)
            break;
        nbytes += text.n;
        meg_progress_show(&progress, "%.1f MB read (%.1f MB/s), %" PRId64 " words", (double)nbytes / 1e6,
                          (double)nbytes / 1e6 / (meg_now_s() - start_s), trainer.words.n);
    }
    meg_progress_end(&progress);
    if (r < 0)
        goto out;
    if (trainer.words.n == 0) {
        r = meg_fail(e, MEG_EFORMAT, "the input contains no text to train on");
        goto out;
    }
    meg_bpe_trainer_run(&trainer, c->vocab_size, c->min_frequency, &vocab);
    if (vocab.tokens.n > c->vocab_size) {
        r = meg_fail(e, MEG_EUSAGE,
                     "--vocab-size %" PRId64 ": the special tokens and the characters of the text are already %" PRId64
                     " tokens; use a larger value",
                     c->vocab_size, vocab.tokens.n);
        goto out;
    }
    if ((r = meg_lock_check(&lock, e)) < 0 || (r = meg_bpe_vocab_write(&vocab, c->output_dir, e)) < 0)
        goto out;
    if (vocab.tokens.n < c->vocab_size)
        meg_warn("the text yields only %" PRId64 " tokens instead of the %" PRId64
                 " of --vocab-size; use more text or a smaller --vocab-size",
                 vocab.tokens.n, c->vocab_size);
    meg_info("%s: %" PRId64 " tokens from %.1f MB of text with %" PRId64 " different words, in %.1f s", c->output_dir,
             vocab.tokens.n, (double)nbytes / 1e6, trainer.words.n, meg_now_s() - start_s);
out:
    meg_lock_release(&lock);
    meg_text_reader_close(in);
    meg_bpe_trainer_free(&trainer);
    meg_bpe_vocab_free(&vocab);
    return r;
}

int main(int argc, char **argv)
{
    struct conf c;
    const struct meg_optgroup groups[] = { { "vocabulary", own_opts, &c },
                                           { "input", meg_text_reader_opts, &c.texts },
                                           { 0 } };
    struct meg_err e;

    meg_opt_add_version_line(meg_unicode_version());
    meg_opt_parse(groups, "[options] --output-dir DIR",
                  "Train a byte-level BPE or WordPiece vocabulary on text or JSON lines.", argc, argv);
    check(&c);
    if (run(&c, &e) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
