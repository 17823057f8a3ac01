/* Options from the command line and from config files: values, errors, output that reads back. */
#include "child.h"

#include <math.h>

#include "base/log.h"
#include "file/file.h"
#include "option/opt.h"

enum order { ORDER_AUTO, ORDER_MEGATRON, ORDER_OTHER };
enum style { STYLE_UNSET = MEG_ENUM_UNSET, STYLE_FULL, STYLE_SELECTIVE };

struct conf {
    enum order order;
    enum style style;
    int level;
    const char *type, *path;
    int64_t n, unset;
    double lr, none;
    bool eod, fusion, flag;
    struct meg_str_list ramp, data, keys;
};

static const struct meg_opt opts[] = {
    MEG_ALIAS("tokenizer", "tokenizer-type"),
    { "tokenizer-type", 't', MEG_STR(struct conf, type), "GPT2|Null", "Null", "type of tokenizer" },
    { "seq-length", 's', MEG_I64(struct conf, n), "N", "2048", "tokens of a sample" },
    { "lr", 0, MEG_F64(struct conf, lr), "RATE", "1e-4", "learning rate" },
    { "append-eod", 'e', MEG_BOOL(struct conf, eod), NULL, "no", "end each document with an id" },
    MEG_NEGATED("no-append-eod", struct conf, eod),
    { "no-fusion", 0, MEG_STORE_FALSE(struct conf, fusion), NULL, "no", "one operation at a time" },
    { "flag", 'f', MEG_BOOL(struct conf, flag), NULL, NULL, "a flag" },
    { "order", 'o', MEG_ENUM(struct conf, order), "auto|megatron-lm|other", "megatron-lm", "order of samples" },
    { "style", 0, MEG_ENUM(struct conf, style), "full|selective", NULL, "style of recomputation" },
    { "level", 0, MEG_ENUM(struct conf, level), "low|high", "low", "an int field" },
    { 0 }
};
static const struct meg_opt old_opts[] = { MEG_RENAMED("full", NULL, "style=full seq-length=7"),
                                           MEG_RENAMED("length", "N", "seq-length level=high"),
                                           MEG_RENAMED("old-keys", "KEY...", "json-keys"),
                                           MEG_RENAMED("old-append-eod", NULL, "append-eod"),
                                           { 0 } };
static const struct meg_opt_names ignored[] = { { "there is no Python here", "manual-gc gc-interval=N" },
                                                { "everything is logged", "log=a|b..." },
                                                { 0 } };
static const struct meg_opt more_opts[] = {
    { "rampup-batch-size", 0, MEG_LIST(struct conf, ramp), "START STEP SAMPLES", NULL, "ramp" },
    { "data-path", 0, MEG_LIST(struct conf, data), "[WEIGHT] PREFIX...", NULL, "data" },
    { "json-keys", 0, MEG_LIST(struct conf, keys), "text|title...", "text", "keys" },
    { "path", 0, MEG_STR(struct conf, path), "FILE", NULL, "a file" },
    { "train-iters", 0, MEG_I64(struct conf, unset), "N", NULL, "steps" },
    { "clip", 0, MEG_F64(struct conf, none), "X", NULL, "norm" },
    MEG_ALIAS("data", "data-path"),
    { 0 }
};

static struct conf conf;
static const struct meg_optgroup groups[] = {
    { "model", opts, &conf }, { "data", more_opts, &conf }, { "older names", old_opts, NULL }, { 0 }
};

static char **words(const char *line, int *n)
{
    static char buf[1024], *v[64];

    snprintf(buf, sizeof buf, "%s", line);
    v[0] = "meg-test";
    *n = 1;
    for (char *p = strtok(buf, " "); p; p = strtok(NULL, " "))
        v[(*n)++] = p;
    v[*n] = NULL;
    return v;
}

static void given(const char *line)
{
    struct meg_err e;
    int n;
    char **v = words(line, &n);

    meg_opt_defaults(groups);
    if (meg_opt_parse_args(groups, n, v, &e) < 0)
        fail_msg("%s: %s", line, e.msg);
}

static void refused(const char *line, const char *why)
{
    struct meg_err e;
    int n;
    char **v = words(line, &n);

    meg_opt_defaults(groups);
    assert_int_equal(meg_opt_parse_args(groups, n, v, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, why);
}

static void invalid_numbers_are_rejected(void **state)
{
    const struct meg_opt seq = { "seq-length", 's', MEG_I64(struct conf, n), "N", "2048", "" };
    struct conf c = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_opt_set(&seq, &c, "4k", &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--seq-length: '4k' is not a 64-bit integer");
    assert_int_equal(meg_opt_set(&seq, &c, "9223372036854775808", &e), MEG_EUSAGE);
    assert_int_equal(meg_opt_set(&seq, &c, "-9223372036854775808", &e), MEG_EUSAGE); /* MEG_UNSET */
    assert_int_equal(meg_opt_set(&seq, &c, "1e3", &e), MEG_EUSAGE);
    assert_int_equal(meg_opt_set(&seq, &c, "", &e), MEG_EUSAGE);
    assert_int_equal(c.n, 0);
    assert_int_equal(meg_opt_set(&seq, &c, "-4096", &e), 0);
    assert_int_equal(c.n, -4096);
}

static void defaults_are_set_and_the_rest_is_unset(void **state)
{
    (void)state;
    given("");
    assert_string_equal(conf.type, "Null");
    assert_int_equal(conf.n, 2048);
    assert_true(conf.lr == 1e-4);
    assert_false(conf.eod);
    assert_true(conf.fusion);
    assert_false(conf.flag);
    assert_int_equal(conf.keys.n, 1);
    assert_string_equal(conf.keys.v[0], "text");
    assert_null(conf.path);
    assert_int_equal(conf.unset, MEG_UNSET);
    assert_true(isnan(conf.none));
    assert_int_equal(conf.ramp.n, 0);
}

static void each_form_of_an_option_is_parsed(void **state)
{
    (void)state;
    given("--seq-length 5 --lr=-1e-3 --append-eod --no-fusion --tokenizer GPT2 --path -");
    assert_int_equal(conf.n, 5);
    assert_true(conf.lr == -1e-3);
    assert_true(conf.eod);
    assert_false(conf.fusion);
    assert_string_equal(conf.type, "GPT2");
    assert_string_equal(conf.path, "-");
    given("--seq_length -7 --no_fusion=no --append_eod --no-append-eod");
    assert_int_equal(conf.n, -7);
    assert_true(conf.fusion);
    assert_false(conf.eod);
    given("-fes9 -t GPT2 --path=--x=y");
    assert_true(conf.flag && conf.eod);
    assert_int_equal(conf.n, 9);
    assert_string_equal(conf.type, "GPT2");
    assert_string_equal(conf.path, "--x=y");
    given("--seq-length 1 --seq-length 2"); /* the last value is used */
    assert_int_equal(conf.n, 2);
}

static void dumped(const char *line, const char *want)
{
    struct meg_str out = { 0 };

    given(line);
    meg_opt_dump(groups, &out);
    if (!strstr(out.s, want))
        fail_msg("%s: not in the options of '%s':\n%s", want, line, out.s);
    meg_str_free(&out);
}

static void choices_are_parsed_into_enums_and_printed_back(void **state)
{
    struct meg_str out = { 0 };

    (void)state;
    given("");
    assert_int_equal(conf.order, ORDER_MEGATRON);
    assert_int_equal(conf.style, STYLE_UNSET);
    assert_int_equal(conf.level, 0);
    assert_null(meg_opt_choice(opts, "style", &conf));
    given("--order auto --style selective --level high");
    assert_int_equal(conf.order, ORDER_AUTO);
    assert_int_equal(conf.style, STYLE_SELECTIVE);
    assert_int_equal(conf.level, 1);
    assert_string_equal(meg_opt_choice(opts, "order", &conf), "auto");
    assert_string_equal(meg_opt_choice(opts, "style", &conf), "selective");
    given("-o other");
    assert_int_equal(conf.order, ORDER_OTHER);
    refused("--order oth", "--order: 'oth' is not one of auto|megatron-lm|other");
    refused("--style 1", "--style: '1' is not one of full|selective");
    dumped("--order other --style full", "order = other\nstyle = full\nlevel = low\n");
    dumped("", "order = megatron-lm\nlevel = low\n");
    meg_opt_list(groups, &out);
    assert_non_null(strstr(out.s, "order\tauto|megatron-lm|other\tmegatron-lm\tmodel\to\t\n"));
    meg_str_free(&out);
}

static void lists_end_at_the_next_option(void **state)
{
    (void)state;
    given("--data-path 0.3 a -0.7 b --rampup-batch-size 16 16 100 --json-keys title text");
    assert_int_equal(conf.data.n, 4);
    assert_string_equal(conf.data.v[0], "0.3");
    assert_string_equal(conf.data.v[2], "-0.7");
    assert_string_equal(conf.data.v[3], "b");
    assert_int_equal(conf.ramp.n, 3);
    assert_int_equal(conf.keys.n, 2);
    given("--data a b c d e f g h i j k --data x"); /* the list is replaced, not extended */
    assert_int_equal(conf.data.n, 1);
    assert_string_equal(conf.data.v[0], "x");
    given("--data a b c d e f g h i j k");
    assert_int_equal(conf.data.n, 11);
    assert_string_equal(conf.data.v[10], "k");
}

static void invalid_command_lines_are_rejected(void **state)
{
    (void)state;
    refused("--seq-lenght 3", "unknown option --seq-lenght; did you mean --seq-length?");
    refused("--seq_lengt=3", "unknown option --seq_lengt; did you mean --seq-length?");
    refused("--rl 3", "unknown option --rl; did you mean --lr?");           /* two exchanged letters are one error */
    refused("--seq 3", "unknown option --seq; did you mean --seq-length?"); /* no abbreviations */
    refused("--zzz", "unknown option --zzz");
    refused("--zzz 1 --flag --seq=3 a", "unknown option --zzz\nopt: unknown option --seq; did you mean --seq-length?");
    refused("-z", "unknown option -z");
    refused("-fz", "unknown option -z");
    refused("word", "unexpected argument 'word'");
    refused("--flag word", "unexpected argument 'word'");
    refused("--", "unexpected argument '--'");
    refused("-", "unexpected argument '-'");
    refused("--seq-length",
            "--seq-length requires a value: N (write --seq-length=-... if the value begins with a dash)");
    refused("--path --flag", "--path requires a value: FILE (write --path=-... if the value begins with a dash)");
    refused("-s", "--seq-length requires a value: N (write --seq-length=-... if the value begins with a dash)");
    refused("--seq-length=", "--seq-length: '' is not a 64-bit integer");
    refused("--lr nan", "--lr: 'nan' is not a finite number");
    refused("--lr=-inf", "--lr: '-inf' is not a finite number");
    refused("--tokenizer BPE", "--tokenizer-type: 'BPE' is not one of GPT2|Null");
    refused("--tokenizer GPT2|Null", "--tokenizer-type: 'GPT2|Null' is not one of GPT2|Null");
    refused("--json-keys text body", "--json-keys: 'body' is not one of text|title...");
    refused("--append-eod=maybe", "--append-eod: 'maybe' is not one of yes, no, true and false");
    refused("--rampup-batch-size 16 16", "--rampup-batch-size requires 3 values (START STEP SAMPLES), found 2");
}

/* ---- config files ---- */

static char dir[256], file[300];

static int read_text(const char *text, size_t n, struct meg_err *e)
{
    assert_int_equal(meg_write_file(file, text, n, e), 0);
    meg_opt_defaults(groups);
    return meg_opt_read_config(groups, file, e);
}

static void in_file(const char *text)
{
    struct meg_err e;

    if (read_text(text, strlen(text), &e) < 0)
        fail_msg("%s", e.msg);
}

static void refused_in_file(const char *text, const char *why)
{
    struct meg_err e;

    assert_int_equal(read_text(text, strlen(text), &e), MEG_EUSAGE);
    assert_memory_equal(e.msg, file, strlen(file));
    assert_string_equal(e.msg + strlen(file), why);
}

static void unsupported_options_print_their_hint(void **state)
{
    static const struct meg_opt_names rows[] = { { "no experts", "topk=1 moe-x=1 moe-*" }, { "no", "yaml" }, { 0 } };

    (void)state;
    meg_opt_set_unsupported(rows);
    refused("--moe_topk 2 --moe- --flag", "--moe_topk: no experts\nopt: --moe-: no experts");
    refused("--yaml=x", "--yaml: no");
    refused("--topk 2", "--topk: no experts");
    refused("--topk", "--topk: no experts");
    refused("--topk 1 1", "--topk: no experts");
    refused("--topk=11", "--topk: no experts");
    given("--topk 1 --moe-x=1 --flag");
    assert_true(conf.flag);
    refused("--moe", "unknown option --moe");
    refused("--yam", "unknown option --yam");
    refused_in_file("yaml = 1\n", ": line 1: --yaml: no");
    in_file("topk = 1\nlength = 3\n");
    assert_int_equal(conf.n, 3);
    meg_opt_set_unsupported(NULL);
    refused("--yaml=x", "unknown option --yaml");
}

static void a_config_file_sets_options(void **state)
{
    (void)state;
    in_file("# a comment\n\n  seq_length=7\t# and another one\nappend-eod = yes\r\n"
            "data-path = 0.5 \"a b\" 0.5 'c\"d' # end\npath = a#b\n"
            "no-fusion = true\nlr = 1e-05");
    assert_int_equal(conf.n, 7);
    assert_true(conf.eod);
    assert_int_equal(conf.data.n, 4);
    assert_string_equal(conf.data.v[1], "a b");
    assert_string_equal(conf.data.v[3], "c\"d");
    assert_string_equal(conf.path, "a#b");
    assert_false(conf.fusion);
    assert_true(conf.lr == 1e-05);
    in_file("path = \"\"\n");
    assert_string_equal(conf.path, "");
    in_file("path = \"a\\\"b\\\\c\\nd\"e'f'\n");
    assert_string_equal(conf.path, "a\"b\\c\ndef");
    in_file("");
    assert_int_equal(conf.n, 2048);
}

static void invalid_config_files_are_rejected(void **state)
{
    struct meg_err e;

    (void)state;
    refused_in_file("flag = yes\nseq-lenght = 3\n",
                    ": line 2: unknown option --seq-lenght; did you mean --seq-length?");
    refused_in_file("flag\n", ": line 1: expected `name = value`, found 'flag'");
    refused_in_file("\n\nseq-length 3\n", ": line 3: expected `name = value`, found 'seq-length 3'");
    refused_in_file("= 3\n", ": line 1: unknown option --");
    refused_in_file("seq-length = 4k", ": line 1: --seq-length: '4k' is not a 64-bit integer");
    refused_in_file("seq-length = 1 2", ": line 1: --seq-length requires one value, found 2");
    refused_in_file("seq-length =", ": line 1: --seq-length requires one value, found 0");
    refused_in_file("data-path = # none", ": line 1: --data-path requires a value: [WEIGHT] PREFIX...");
    refused_in_file("path = a b", ": line 1: --path requires one value, found 2");
    refused_in_file("path = 'a b", ": line 1: a quote (') is not closed");
    refused_in_file("path = \"a\\tb\"", ": line 1: in double quotes, a backslash must be followed by \", \\ or n");
    refused_in_file("path = \"a\\", ": line 1: in double quotes, a backslash must be followed by \", \\ or n");
    assert_int_equal(read_text("flag = no\npath = a\0b\n", 21, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, ": line 2: contains a zero byte"));
    assert_int_equal(meg_opt_read_config(groups, "/nowhere/x.conf", &e), MEG_ENOENT);
}

static void dumped_options_read_back_identically(void **state)
{
    struct meg_str first = { 0 }, second = { 0 };
    char line[] = "--append-eod --no-fusion --lr 0.1 --train-iters -5 --data-path 1 p --clip 1";
    struct meg_err e;

    (void)state;
    given(line);
    conf.path = " a'\"\\\n\t#b";
    meg_opt_dump(groups, &first);
    assert_string_equal(first.s, "# model\ntokenizer-type = Null\nseq-length = 2048\nlr = 0.1\n"
                                 "append-eod = yes\nno-fusion = yes\nflag = no\norder = megatron-lm\nlevel = low\n"
                                 "# data\ndata-path = 1 p\njson-keys = text\n"
                                 "path = \" a'\\\"\\\\\\n\t#b\"\ntrain-iters = -5\nclip = 1.0\n");
    assert_int_equal(read_text(first.s, first.n, &e), 0);
    assert_string_equal(conf.path, " a'\"\\\n\t#b");
    meg_opt_dump(groups, &second);
    assert_string_equal(first.s, second.s);
    meg_str_free(&first);
    meg_str_free(&second);
}

static void given_options_override_stored_ones(void **state)
{
    static const char stored[] = "# model\nseq-length = 64\nlr = 0.5\nunknown-here = 3 4\nflag = yes\n";
    static struct conf c;
    const struct meg_optgroup own[] = { { "model", opts, &c }, { 0 } };
    struct meg_err e;
    int n;
    char **v = words("--seq-length 128", &n);

    (void)state;
    meg_opt_defaults(own);
    assert_int_equal(meg_opt_parse_args(own, n, v, &e), 0);
    assert_true(meg_opt_was_given(&c.n));
    assert_false(meg_opt_was_given(&c.lr));
    assert_int_equal(meg_opt_apply(own, stored, "state.json", &e), 0);
    assert_int_equal(c.n, 128);
    assert_true(c.lr == 0.5);
    assert_true(c.flag);
    assert_false(meg_opt_was_given(&c.lr));
    assert_int_equal(meg_opt_apply(own, "\nlr = x\n", "state.json", &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "state.json: line 2: --lr: 'x' is not a finite number");
}

/* ---- meg_opt_parse, which exits ---- */

static void parse(void *line)
{
    struct meg_str out = { 0 };
    int n;
    char **v = words(line, &n);

    setenv("COLUMNS", "80", 1);
    meg_opt_add_version_line("built with nothing else");
    meg_opt_parse(groups, "[options] --output-prefix PREFIX", "Do nothing.", n, v);
    meg_opt_dump(groups, &out);
    fputs(out.s, stdout);
    meg_str_free(&out);
}

static void ends(const char *line, int status, const char *out, const char *err)
{
    struct child c;

    child_run(&c, parse, (void *)line);
    if (c.status != status || !strstr(c.out, out) || !strstr(c.err, err))
        fail_msg("%s: status %d\n%s%s", line, c.status, c.out, c.err);
}

static void parse_for_warning(void *arg)
{
    static const struct meg_opt_names unsupported[] = { { "no experts", "moe-topk=1" }, { 0 } };
    const char *line = (const char *)arg;
    int n;
    char **v;

    meg_log_set_rank(*line == '1');
    setenv("COLUMNS", "80", 1);
    v = words(line + 1, &n);
    meg_opt_set_ignored(ignored);
    meg_opt_set_unsupported(unsupported);
    meg_opt_parse(groups, "", "", n, v);
    exit(conf.flag ? 0 : 1);
}

/* Check the messages of a rank that parses `line`, whose first character is the rank; with --help, its output. */
static void warns(const char *line, int status, const char *want)
{
    struct child c;

    child_run(&c, parse_for_warning, (void *)(uintptr_t)line);
    if (!strstr(line, "--help"))
        assert_string_equal(c.err, want);
    else if (!strstr(c.out, want))
        fail_msg("%s%s", c.out, c.err);
    assert_int_equal(c.status, status);
}

static void one_warning_names_old_and_ignored_options(void **state)
{
    (void)state;
    warns("0--manual-gc --gc-interval 5 --manual_gc --flag --log a b", 0,
          "opt: these options have no effect, for reasons that --help lists: --manual-gc, --gc-interval, --log\n");
    warns("0--moe_topk 1 --flag --full --length 5 --full", 0,
          "opt: these options have new names: --full (now --style full --seq-length 7), --length (now --seq-length N "
          "--level high); these options have no effect, for reasons that --help lists: --moe_topk\n");
    warns("1--manual-gc --full --flag", 0, "");
    warns("0--moe-topk 2 --manual-gc", 2, "opt: --moe-topk: no experts\nTry 'opt --help'.\n");
    warns("0--log a c", 2, "opt: --log: 'c' is not one of a|b...\nTry 'opt --help'.\n");
    warns(
        "0--help", 0,
        "\naccepted and ignored:\n      --manual-gc, --gc-interval N\n                              there is no Python "
        "here\n      --log a|b...\n                              everything is logged\n");
    warns("0--gc-interval", 2,
          "opt: --gc-interval requires a value: N (write --gc-interval=-... if the value begins with a dash)\nTry 'opt "
          "--help'.\n");
}

/* The first test, because fields that earlier tests set count as given, and their warnings are printed. */
static void old_names_set_the_options_that_replace_them(void **state)
{
    (void)state;
    ends("--full", 0, "\nseq-length = 7\n", "--full (now --style full --seq-length 7)");
    ends("--full", 0, "\nstyle = full\n", "");
    ends("--full --seq-length 9", 0, "\nseq-length = 9\n", "");
    ends("--length 9 --full", 0, "\nseq-length = 9\n", "");
    ends("--length=12", 0, "\nseq-length = 12\n", "");
    ends("--length=12", 0, "\nlevel = high\n", "");
    ends("--old-keys text title", 0, "\njson-keys = text title\n", "");
    ends("--old-append-eod", 0, "\nappend-eod = yes\n", "");
    ends("--full=no --old-append-eod=false", 0, "\nseq-length = 2048\n", "");
    ends("--old-append-eod=false", 0, "\nappend-eod = no\n", "");
    ends("--length 4k", 2, "", "--seq-length: '4k' is not a 64-bit integer");
    ends("--full=x", 2, "", "--full: 'x' is not one of yes, no, true and false");
    ends("--list-options", 0, "\nlength\tN\t\tolder names\t\t--seq-length N --level high\n", "");
    ends("--help", 0, "--length N              now --seq-length N --level high\n", "");
}

static void each_command_has_the_common_options(void **state)
{
    struct child c;
    char line[512], longest[512];
    struct meg_err e;
    char *p, *save;

    (void)state;
    ends("--seq-lenght 3", 2, "", "did you mean --seq-length?\nTry 'opt --help'.\n");
    ends("--config /nowhere/x.conf", 66, "", "opt: /nowhere/x.conf: No such file or directory\n");
    ends("--completion fish", 2, "", "--completion: 'fish' is not supported; bash is the only supported shell");
    ends("--version", 0, "opt " MEG_VERSION "\nbuilt with nothing else\n", "");
    ends("--help", 0, "usage: opt [options] --output-prefix PREFIX\nDo nothing.\n\nmodel:\n", "");
    ends("-h", 0, "  -s, --seq-length N          tokens of a sample (default: 2048)\n", "");
    ends("--help", 0, "type of tokenizer (default: Null) (also\n                              --tokenizer)\n", "");
    ends("--help", 0, "--no-append-eod         the opposite of --append-eod", "");
    ends("--list-options", 0, "\nseq-length\tN\t2048\tmodel\ts\t\n", "");
    ends("--list-options", 0, "tokenizer\t\t\tmodel\t\ttokenizer-type\n", "");
    ends("--list-options", 0, "\nno-append-eod\t\t\tmodel\t\tappend-eod\n", "");
    ends("--list-options", 0, "\nhelp\t\t\tevery command\th\t\n", "");
    ends("--completion bash", 0, "--tokenizer-type) words='GPT2 Null' ;;", "");
    ends("--completion bash", 0, "--json-keys) words='text title' ;;", "");
    ends("--seq-length 3 --dump-config", 0, "# model\ntokenizer-type = Null\nseq-length = 3\n", "");

    assert_int_equal(meg_write_file(file, "seq-length = 7\nlr = 0.5\n", 24, &e), 0);
    snprintf(line, sizeof line, "--seq-length 1 --config %s --lr 0.25", file);
    ends(line, 0, "seq-length = 7\nlr = 0.25\n", ""); /* in the order of the command line */
    assert_int_equal(meg_write_file(file, "config = a\n", 11, &e), 0);
    snprintf(line, sizeof line, "--config %s", file);
    ends(line, 2, "", ": line 1: --config is allowed only on the command line");

    child_run(&c, parse, "--help");
    longest[0] = 0;
    for (p = strtok_r(c.out, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
        if (strlen(p) > strlen(longest))
            strcpy(longest, p);
    assert_in_range(strlen(longest), 60, 80);
}

static void a_full_disk(void *arg)
{
    assert_non_null(freopen("/dev/full", "w", stdout));
    parse(arg);
}

static void help_that_cannot_be_printed_fails(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, a_full_disk, "--help");
    assert_int_equal(c.status, 74);
}

/* Give options, and check the value of the option `row` and whether it is set. */
static void check_value(const char *options, const struct meg_opt *row, const char *want, bool is_set)
{
    char *value;

    given(options);
    value = meg_opt_value(row, &conf);
    assert_string_equal(value, want);
    assert_int_equal(meg_opt_is_set(row, value), is_set);
    free(value);
}

static void defaults_and_zeros_are_not_set(void **state)
{
    const struct meg_opt *clip = &more_opts[5], *keys = &more_opts[2], *order = &opts[8];

    (void)state;
    check_value("", clip, "unset", false);
    check_value("--clip 0", clip, "0.0", false);
    check_value("--clip 2", clip, "2.0", true);
    check_value("", order, "megatron-lm", false);
    check_value("--order auto", order, "auto", true);
    check_value("--json-keys title text", keys, "title text", true);
}

static void lists_of_names_have_prefixes_and_values(void **state)
{
    static const char names[] = "lr seq-* order=auto";

    (void)state;
    assert_true(meg_opt_is_listed(names, "lr", "1"));
    assert_true(meg_opt_is_listed(names, "seq_length", NULL));
    assert_true(meg_opt_is_listed(names, "order", "auto"));
    assert_false(meg_opt_is_listed(names, "order", "other"));
    assert_false(meg_opt_is_listed(names, "order", NULL));
    assert_false(meg_opt_is_listed(names, "lr-decay", "1"));
    assert_false(meg_opt_is_listed(NULL, "lr", "1"));
}

static int make(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    snprintf(file, sizeof file, "%s/x.conf", dir);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_names_set_the_options_that_replace_them),
        cmocka_unit_test(one_warning_names_old_and_ignored_options),
        cmocka_unit_test(invalid_numbers_are_rejected),
        cmocka_unit_test(defaults_are_set_and_the_rest_is_unset),
        cmocka_unit_test(each_form_of_an_option_is_parsed),
        cmocka_unit_test(choices_are_parsed_into_enums_and_printed_back),
        cmocka_unit_test(lists_end_at_the_next_option),
        cmocka_unit_test(invalid_command_lines_are_rejected),
        cmocka_unit_test(unsupported_options_print_their_hint),
        cmocka_unit_test(a_config_file_sets_options),
        cmocka_unit_test(invalid_config_files_are_rejected),
        cmocka_unit_test(dumped_options_read_back_identically),
        cmocka_unit_test(given_options_override_stored_ones),
        cmocka_unit_test(each_command_has_the_common_options),
        cmocka_unit_test(help_that_cannot_be_printed_fails),
        cmocka_unit_test(defaults_and_zeros_are_not_set),
        cmocka_unit_test(lists_of_names_have_prefixes_and_values),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
