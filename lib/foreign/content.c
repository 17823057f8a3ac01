/* content.c - identify a file by its first bytes, by a table of formats, and describe it in a message. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "foreign/internal.h"

#define READER(expected) (1u << (expected))

/* Sets of readers to which a format is not foreign. */
enum {
    ANY = READER(MEG_EXPECT_FILE), /* all readers open the file, and explain it only after a failure */
    TEXT = ANY | READER(MEG_EXPECT_TEXT),
    JSON = TEXT | READER(MEG_EXPECT_JSON) | READER(MEG_EXPECT_TOKENIZER),
    TOKENIZER = ANY | READER(MEG_EXPECT_TOKENIZER),
    SAFETENSORS = ANY | READER(MEG_EXPECT_SAFETENSORS),
    TORCH = ANY | READER(MEG_EXPECT_TORCH),
    DATASET = ANY | READER(MEG_EXPECT_DATASET),
    ALL_BUT_JSON = (READER(MEG_NUM_EXPECTED) - 1) &
                   ~(READER(MEG_EXPECT_JSON_LINES) | READER(MEG_EXPECT_JSON) | READER(MEG_EXPECT_CHECKPOINT))
};

struct format {
    const char *name; /* with its article */
    const char *remedy;
    unsigned readers;   /* set of readers to which the format is not foreign */
    foreign_test *test; /* recognises the format; NULL: the file begins with `magic` */
    const char *magic;
    size_t nmagic;
};

#define MAGIC(bytes) NULL, bytes, sizeof(bytes) - 1
#define TEST(name) foreign_is_##name, NULL, 0
#define TO_JSON_LINES "convert it to JSON lines, for example with pandas or pyarrow"
#define USE_HF "use the model in the format of Hugging Face (config.json and model.safetensors)"
#define EXTRACT "extract the file from it: "
#define DECOMPRESS "decompress it: "
#define RESAVE "load it with the program that wrote it, and save it in another format"

/* The first row that matches is used. */
static const struct format formats[] = {
    { "a Git LFS pointer", "download the file: git lfs pull", 0, TEST(lfs_pointer) },
    { "a git-annex pointer", "download the file: git annex get", 0, TEST(annex_pointer) },
    { "an HTML page", "download the file itself: on the Hub, its URL contains /resolve/ instead of /blob/", TEXT,
      TEST(html) },
    { "an error message of the Hugging Face Hub",
      "check the name of the file and your access to it, and download it again", TEXT, TEST(hub_error) },
    { "an XML document", "convert it to JSON lines, or download the file again if this is the message of a failure",
      TEXT, TEST(xml) },
    { "a WARC file", "extract its text to JSON lines", TEXT, TEST(warc) },

    { "a NeMo archive", "export the model with NeMo to the format of Hugging Face", ANY, TEST(nemo) },
    { "a tar archive", EXTRACT "tar -xf", ANY, TEST(tar) },
    { "a torch.save file", USE_HF, TORCH, TEST(torch_zip) },
    { "a NumPy .npz file", TO_JSON_LINES, ANY, TEST(npz) },
    { "a ZIP file", EXTRACT "unzip", TORCH, MAGIC("PK\3\4") },
    { "a 7z archive", EXTRACT "7z x", ANY, MAGIC("7z\xBC\xAF\x27\x1C") },
    { "a RAR archive", EXTRACT "unrar x", ANY, MAGIC("Rar!\x1A\7") },

    { "gzip data", DECOMPRESS "gzip -d", ANY, MAGIC("\x1F\x8B") },
    { "zstd data", DECOMPRESS "zstd -d", ANY, MAGIC("\x28\xB5\x2F\xFD") },
    { "xz data", DECOMPRESS "xz -d", ANY, MAGIC("\3757zXZ\0") },
    { "bzip2 data", DECOMPRESS "bzip2 -d", ANY, TEST(bzip2) },
    { "lz4 data", DECOMPRESS "lz4 -d", ANY, MAGIC("\x04\x22\x4D\x18") },
    { "lzip data", DECOMPRESS "lzip -d", ANY, MAGIC("LZIP\1") },
    { "LZMA data", DECOMPRESS "xz -d --format=lzma", ANY, MAGIC("\x5D\0\0") },
    { "data of compress", DECOMPRESS "gzip -d", ANY, MAGIC("\x1F\x9D") },
    { "a snappy stream", "decompress it", ANY, MAGIC("\xFF\6\0\0sNaPpY") },
    { "zlib data", DECOMPRESS "pigz -dz", ANY, TEST(zlib) },

    { "a Parquet file", TO_JSON_LINES, ANY, MAGIC("PAR1\x15") },
    { "an Arrow file", TO_JSON_LINES, ANY, MAGIC("ARROW1\0\0") },
    { "an Arrow stream", TO_JSON_LINES, ANY, TEST(arrow_stream) },
    { "a Feather file", TO_JSON_LINES, ANY, MAGIC("FEA1\0") },
    { "an ORC file", TO_JSON_LINES, ANY, MAGIC("ORC\0") },
    { "an Avro file", TO_JSON_LINES, ANY, MAGIC("Obj\1") },
    { "an SQLite database", TO_JSON_LINES, ANY, MAGIC("SQLite format 3\0") },
    { "a NumPy .npy file", TO_JSON_LINES, ANY, MAGIC("\x93NUMPY") },
    { "a PDF document", "convert it to text: pdftotext", ANY, MAGIC("%PDF-") },

    { "a GGUF file", USE_HF ", of which it is a conversion", ANY, TEST(gguf) },
    { "a safetensors file", USE_HF, SAFETENSORS, TEST(safetensors) },
    { "an HDF5 file", USE_HF, ANY, MAGIC("\x89HDF\r\n\x1A\n") },
    { "an ONNX model", USE_HF, ANY, TEST(onnx) },
    { "a SavedModel of TensorFlow", USE_HF, ANY, TEST(saved_model) },
    { "a SentencePiece model", "give it as --tokenizer-model", TOKENIZER, TEST(sentencepiece) },
    { "an .idx file of a token dataset", "give the name without .idx as --data-path or --datasets", DATASET,
      MAGIC("MMIDIDX\0\0") },
    { "a torch.save file of PyTorch before 1.6", "load and save it once with a newer PyTorch", ANY,
      MAGIC("\x80\2\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19") },
    { "a Python pickle", RESAVE, ANY, MAGIC("\x80\2") },
    { "a Python pickle", RESAVE, ANY, MAGIC("\x80\3") },
    { "a Python pickle", RESAVE, ANY, MAGIC("\x80\4\x95") },
    { "a Python pickle", RESAVE, ANY, MAGIC("\x80\5\x95") },
    { "an ELF program or library", "check the name", ANY, MAGIC("\177ELF") },
    { "a Windows program or library", "check the name", ANY, MAGIC("MZ\x90\0") },

    { "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8", ANY, TEST(utf32) },
    { "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8", ANY, TEST(utf16) },
    { "a JSON array", "convert it to one object per line: jq -c '.[]'", JSON, TEST(json_array) },
    { "a JSON object over several lines", "convert it to one object per line: jq -c .", JSON, TEST(json_document) },
    { "binary data, not text", "check the name", ALL_BUT_JSON, TEST(binary) },
};

static const char *const expected_text[MEG_NUM_EXPECTED] = {
    [MEG_EXPECT_FILE] = "the file itself",
    [MEG_EXPECT_TEXT] = "text or JSON lines",
    [MEG_EXPECT_SETTINGS] = "a text file",
    [MEG_EXPECT_JSON_LINES] = "JSON lines",
    [MEG_EXPECT_JSON] = "JSON",
    [MEG_EXPECT_TOKENIZER] = "a file of a tokenizer",
    [MEG_EXPECT_SAFETENSORS] = "a safetensors file",
    [MEG_EXPECT_TORCH] = "a torch.save file",
    [MEG_EXPECT_DATASET] = "a token dataset",
    [MEG_EXPECT_CHECKPOINT] = "the directory of a checkpoint",
};

static bool matches(const struct format *x, const struct foreign_prefix *f)
{
    return x->test ? x->test(f) : f->n >= x->nmagic && memcmp(f->p, x->magic, x->nmagic) == 0;
}

static const struct format *identify(const struct foreign_prefix *f)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (matches(&formats[i], f))
            return &formats[i];
    return NULL;
}

/* Store the message about a file of format x. */
static int refuse(const struct format *x, const struct foreign_prefix *f, enum meg_expected expected, struct meg_err *e)
{
    const int64_t size = x->test == foreign_is_lfs_pointer ? foreign_lfs_size(f) : -1;
    char detail[64] = "";

    if (size >= 0)
        snprintf(detail, sizeof detail, " to a file of %" PRId64 " bytes", size);
    return meg_fail(e, MEG_EFORMAT, "%s: found %s%s, expected %s; %s", f->path, x->name, detail,
                    expected_text[expected], x->remedy);
}

int meg_foreign_check(const char *path, const void *p, size_t n, enum meg_expected expected, struct meg_err *e)
{
    const struct foreign_prefix f = { path, (const unsigned char *)p, n < MEG_FOREIGN_PREFIX ? n : MEG_FOREIGN_PREFIX };
    const struct format *x = n ? identify(&f) : NULL;

    return x && !(x->readers & READER(expected)) ? refuse(x, &f, expected, e) : 0;
}

int meg_foreign_explain(int r, const char *path, const void *p, size_t n, enum meg_expected expected, struct meg_err *e)
{
    return r < 0 && meg_foreign_check(path, p, n, expected, e) < 0 ? MEG_EFORMAT : r;
}

size_t foreign_read(const char *path, void *buf, size_t size)
{
    struct stat st;
    ssize_t n = -1;
    int fd;

    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || (fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
        return 0;
    do
        n = read(fd, buf, size);
    while (n < 0 && errno == EINTR);
    close(fd);
    return n < 0 ? 0 : (size_t)n;
}

int meg_foreign_check_mode(const char *path, mode_t mode, bool allows_pipe, struct meg_err *e)
{
    static const struct {
        mode_t type;
        const char *name;
    } types[] = { { S_IFDIR, "a directory" },
                  { S_IFIFO, "a FIFO" },
                  { S_IFSOCK, "a socket" },
                  { S_IFCHR, "a device" },
                  { S_IFBLK, "a block device" } };

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((mode & S_IFMT) == types[i].type && (i == 0 || !allows_pipe))
            return meg_fail(e, MEG_EIO, "%s: found %s, expected %s; give the name of a file", path, types[i].name,
                            allows_pipe ? "a file or a pipe" : "a regular file");
    return 0;
}

/* Describe a file where the directory of a checkpoint is expected. */
static int refuse_as_folder(const struct foreign_prefix *f, struct meg_err *e)
{
    const struct format *x = f->n ? identify(f) : NULL;
    const char *slash = strrchr(f->path, '/');
    const bool is_part = x && (x->test == foreign_is_safetensors || x->test == foreign_is_torch_zip);

    if (x && !is_part && x->test != foreign_is_json_document && x->test != foreign_is_binary)
        return refuse(x, f, MEG_EXPECT_CHECKPOINT, e);
    return meg_fail(e, MEG_EFORMAT, "%s: found %s, expected the directory of a checkpoint; use the directory %.*s",
                    f->path, is_part ? x->name : "a file", slash ? (int)(slash - f->path) + (slash == f->path) : 1,
                    slash ? f->path : ".");
}

int meg_foreign_check_path(const char *path, enum meg_expected expected, struct meg_err *e)
{
    unsigned char buf[MEG_FOREIGN_PREFIX];
    struct foreign_prefix f = { path, buf, 0 };
    struct stat st;

    if (stat(path, &st) < 0)
        return 0;
    if (S_ISDIR(st.st_mode))
        return expected == MEG_EXPECT_CHECKPOINT ? 0 : meg_foreign_check_mode(path, st.st_mode, true, e);
    f.n = foreign_read(path, buf, sizeof buf);
    if (expected == MEG_EXPECT_CHECKPOINT)
        return S_ISREG(st.st_mode) ? refuse_as_folder(&f, e) : meg_foreign_check_mode(path, st.st_mode, false, e);
    return meg_foreign_check(path, buf, f.n, expected, e);
}
