/*
 * Peak memory of preprocessing lines of many megabytes, most of which are a single word or only whitespace.  It is
 * within the limit of meg-preprocess(1), 256 MiB plus 64 MiB per worker.  Each test preprocesses in a process of its
 * own.
 */
#include "child.h"

#include <sys/resource.h>

#include "preprocess/preprocess.h"
#include "golden.h"
#include "sanitized.h"

enum { MIB = 1 << 20 };

static char dir[4000];

/* Write a file of `lines` JSON lines whose texts repeat `what` for about nbytes; return its path. */
static const char *write_lines(const char *what, int64_t nbytes, int lines)
{
    static char path[4100], text[1 << 16];
    size_t n = strlen(what), capacity = sizeof text / n * n;
    FILE *f;

    snprintf(path, sizeof path, "%s/in.jsonl", dir);
    assert_non_null(f = fopen(path, "w"));
    for (size_t i = 0; i < capacity; i++)
        text[i] = what[i % n];
    for (; lines > 0; lines--) {
        fputs("{\"text\": \"", f);
        for (int64_t k = 0; k < nbytes; k += (int64_t)capacity)
            fwrite(text, 1, capacity, f);
        fputs("\"}\n", f);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

struct run {
    struct meg_tok_conf tok;
    const char *in, *workers;
};

static void preprocess(void *arg)
{
    const struct run *run = arg;
    const char *input[] = { run->in }, *key[] = { "text" };
    char prefix[4100];
    const struct meg_preprocess_conf c = {
        .input = { input, 1 },
        .json_keys = { key, 1 },
        .output_prefix = prefix,
        .workers = run->workers,
        .partitions = 1,
        .dataset_impl = "mmap",
        .log_interval = MEG_UNSET,
    };
    struct meg_tokenizer *tok;
    struct rusage used;
    struct meg_err e;

    snprintf(prefix, sizeof prefix, "%s/out", dir);
    if (meg_tokenizer_open(&tok, &run->tok, &e) < 0 || meg_preprocess(&c, tok, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        _exit(1);
    }
    meg_tokenizer_close(tok);
    getrusage(RUSAGE_SELF, &used);
    printf("%ld", used.ru_maxrss / 1024);
}

/*
 * Check the memory limit for a tokenizer type on lines of mib MiB that repeat `what`; several lines use two workers.
 * `file` and `with` are names of files in data/tokenizers; `with` may be NULL.
 */
static void keeps_to_the_bound(const char *type, const char *file, const char *with, const char *what, int64_t mib,
                               int lines)
{
    struct run run = { .tok = { .type = type, .vocab_extra_ids = MEG_UNSET, .vocab_size = MEG_UNSET },
                       .workers = lines > 1 ? "2" : "1" };
    const int64_t bound = lines > 1 ? 384 : 320;
    char path[2][4200];
    const char *data_dir = shared("data/tokenizers");
    struct child child;

    if (IS_SANITIZED) {
        print_message("# a sanitizer takes memory of its own\n");
        skip();
    }
    snprintf(path[0], sizeof path[0], "%s/%s", data_dir, file);
    snprintf(path[1], sizeof path[1], "%s/%s", data_dir, with ? with : "");
    run.tok.vocab_file = path[0];
    run.tok.merge_file = path[1];
    if (strcmp(type, "HuggingFaceTokenizer") == 0 || strstr(type, "Sentence"))
        run.tok.tokenizer_model = path[0];
    run.in = write_lines(what, mib * MIB, lines);
    child_run(&child, preprocess, &run);
    if (child.status != 0)
        fail_msg("%s: %s", file, child.err);
    print_message("# %s, '%s': %s MiB\n", file, what, child.out);
    assert_in_range(atoi(child.out), 1, bound);
}

static const char emoji[] = "\xF0\x9F\x98\x80\xF0\x9F\x98\x81";

#define KEEPS(id, ...)                                                                                                 \
    static void id(void **state)                                                                                       \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        keeps_to_the_bound(__VA_ARGS__);                                                                               \
    }
KEEPS(spaces_with_gpt2_fit_in_memory, "GPT2BPETokenizer", "gpt2/vocab.json", "gpt2/merges.txt", " ", 60, 1)
KEEPS(a_letter_with_unigram_fits_in_memory, "GPTSentencePieceTokenizer", "t5/spiece.model", NULL, "a", 60, 1)
KEEPS(emoji_with_wordpiece_fit_in_memory, "BertWordPieceLowerCase", "bert-base-uncased/vocab.txt", NULL, emoji, 60, 1)
KEEPS(a_letter_with_t5_fits_in_memory, "HuggingFaceTokenizer", "t5", NULL, "a", 15, 1)
KEEPS(spaces_that_are_not_split_points_with_t5_fit_in_memory, "HuggingFaceTokenizer", "t5", NULL, "a\xC2\xA0", 15, 1)
KEEPS(words_with_qwen2_fit_in_memory, "HuggingFaceTokenizer", "qwen2", NULL, "\\n of caf\xC3\xA9s", 60, 1)
KEEPS(text_that_grows_by_normalization_with_qwen2_fits_in_memory, "HuggingFaceTokenizer", "qwen2", NULL,
      "\xF0\x9D\x85\xA0\\n", 25, 1)
KEEPS(emoji_with_bert_fit_in_memory, "HuggingFaceTokenizer", "bert-base-uncased", NULL, emoji, 15, 1)
KEEPS(escapes_with_two_workers_fit_in_memory, "GPTSentencePieceTokenizer", "llama2/tokenizer.model", NULL, "a\\n b", 30,
      4)

static int make_folder(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    return 0;
}

static int remove_folder(void **state)
{
    static const char *const names[] = { "in.jsonl", "out_text_document.bin", "out_text_document.idx" };
    char path[4100];

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spaces_with_gpt2_fit_in_memory),
        cmocka_unit_test(a_letter_with_unigram_fits_in_memory),
        cmocka_unit_test(emoji_with_wordpiece_fit_in_memory),
        cmocka_unit_test(a_letter_with_t5_fits_in_memory),
        cmocka_unit_test(spaces_that_are_not_split_points_with_t5_fit_in_memory),
        cmocka_unit_test(words_with_qwen2_fit_in_memory),
        cmocka_unit_test(text_that_grows_by_normalization_with_qwen2_fits_in_memory),
        cmocka_unit_test(emoji_with_bert_fit_in_memory),
        cmocka_unit_test(escapes_with_two_workers_fit_in_memory),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
