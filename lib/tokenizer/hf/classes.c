/* classes.c - what the tokenizer classes of transformers change in a tokenizer.json. */
#include <string.h>
#include "tokenizer/hf/config.h"

const char *const meg_hf_role_names[MEG_HF_NUM_ROLES] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                                          "pad_token", "cls_token", "mask_token" };

#define BIT(role) (1u << MEG_HF_##role)
#define ALL (BIT(BOS) | BIT(EOS) | BIT(UNK) | BIT(SEP) | BIT(PAD) | BIT(CLS) | BIT(MASK))

/* clang-format off */
#define NO_ROLES      { NULL }
#define ENDOFTEXT     { "<|endoftext|>", "<|endoftext|>", "<|endoftext|>" }
#define ROBERTA_ROLES { "<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>" }
#define BERT_ROLES    { NULL, NULL, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]" }
#define ALBERT_ROLES  { "[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]" }
#define DEBERTA_ROLES { "[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]" }
#define T5_ROLES      { NULL, "</s>", "<unk>", NULL, "<pad>" }
#define LLAMA_ROLES   { "<s>", "</s>", "<unk>" }

#define BERT(class, models) { class, models, .role = BERT_ROLES, .nnormalizer_members = 3 }
#define ROBERTA(class, models) { class, models, .role = ROBERTA_ROLES, .replaces = BIT(MASK) }
#define GPT2(class, models) { class, models, .role = ENDOFTEXT }
#define T5(class, models) \
    { class, models, .role = T5_ROLES, .prefix_space = MEG_HF_PREFIX_UNCHANGED, .more = MEG_HF_MORE_T5 }

static const struct meg_hf_class classes[] = {
    { "PreTrainedTokenizer", "bitnet falcon glm glm4 glm4_moe gpt_oss helium modernbert moshi nemotron smollm3",
      .role = NO_ROLES },
    { "TokenizersBackend", NULL, .role = NO_ROLES }, /* the name of PreTrainedTokenizerFast in transformers 5 */
    { "ParakeetTokenizer", NULL, .role = NO_ROLES },

    GPT2("GPT2Tokenizer", "dbrx exaone4 flex_olmo gpt2 gpt_bigcode gpt_neo gptj granite granitemoe "
      "granitemoehybrid granitemoeshared minimax olmo3 opt starcoder2"),
    GPT2("CodeGenTokenizer", "codegen phi"),
    { "GPTNeoXTokenizer", "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmo2 olmoe rwkv stablelm xlstm",
      .role = { "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", NULL, "" }, .has_template = true },
    { "WhisperTokenizer", NULL, .role = ENDOFTEXT, .replaces = BIT(BOS) | BIT(EOS) | BIT(UNK) },
    { "Qwen2Tokenizer", "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next",
      .role = { "", "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>" },
      .replaces = BIT(BOS) | BIT(EOS) | BIT(UNK) | BIT(PAD) },
    { "BloomTokenizer", "bloom", .role = { "<s>", "</s>", "<unk>", NULL, "<pad>" },
      .prefix_space = MEG_HF_PREFIX_NESTED },
    { "CohereTokenizer", "cohere cohere2", .role = { "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>" },
      .has_template = true, .adds_bos = true, .prefix_space = MEG_HF_PREFIX_NESTED },
    { "CLIPTokenizer", NULL,
      .role = { "<|startoftext|>", "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>" } },
    { "NougatTokenizer", NULL, .role = { "<s>", "</s>", "<unk>", NULL, "<pad>" } },

    { "LlamaTokenizer", "arcee deepseek_v2 deepseek_v3 diffllama ernie4_5 ernie4_5_moe jamba jetmoe llama "
      "llama4 llama4_text ministral mistral mistral3 mixtral persimmon phi3 phimoe zamba zamba2",
      .role = LLAMA_ROLES, .has_template = true, .adds_bos = true, .prefix_space = MEG_HF_PREFIX_UNCHANGED,
      .has_legacy_prefix = true },
    { "CodeLlamaTokenizer", "code_llama", .role = LLAMA_ROLES, .has_template = true, .adds_bos = true,
      .more = MEG_HF_MORE_CODE_LLAMA },
    { "GemmaTokenizer", "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma t5gemma",
      .role = { "<bos>", "<eos>", "<unk>", NULL, "<pad>" }, .has_template = true, .adds_bos = true },
    T5("T5Tokenizer", "longt5 switch_transformers t5 umt5"), T5("MT5Tokenizer", "mt5"),
    { "ReformerTokenizer", "reformer", .role = { NULL, "</s>", "<unk>" } },
    { "XGLMTokenizer", "xglm", .role = { "<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>" },
      .more = MEG_HF_MORE_XGLM },

    BERT("BertTokenizer", "bert ernie megatron-bert nezha qdqbert"), BERT("ConvBertTokenizer", "convbert"),
    BERT("DistilBertTokenizer", "distilbert"), BERT("DPRContextEncoderTokenizer", NULL),
    BERT("DPRQuestionEncoderTokenizer", NULL), BERT("ElectraTokenizer", "electra"), BERT("LayoutLMTokenizer", NULL),
    BERT("LxmertTokenizer", NULL),
    BERT("MobileBertTokenizer", "mobilebert"), BERT("SqueezeBertTokenizer", "squeezebert"),
    { "FunnelTokenizer", "funnel", .role = { "<s>", "</s>", "<unk>", "<sep>", "<pad>", "<cls>", "<mask>" },
      .nnormalizer_members = 3 },
    { "MPNetTokenizer", "mpnet", .role = { "<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>" },
      .replaces = ALL, .nnormalizer_members = 2 },

    ROBERTA("RobertaTokenizer", "data2vec-text ibert mega mra roberta roberta-prelayernorm"),
    ROBERTA("LongformerTokenizer", "longformer"), ROBERTA("BlenderbotTokenizer", "blenderbot"),
    ROBERTA("BarthezTokenizer", NULL), ROBERTA("XLMRobertaTokenizer", "xlm-roberta xlm-roberta-xl xmod"),
    { "BartTokenizer", "bart", .role = ROBERTA_ROLES, .replaces = BIT(MASK), .is_mask_normalized = true },
    { "LEDTokenizer", "led", .role = ROBERTA_ROLES, .replaces = BIT(MASK), .is_mask_normalized = true },
    { "MvpTokenizer", "mvp", .role = ROBERTA_ROLES, .replaces = ALL },
    { "CamembertTokenizer", "camembert", .role = ROBERTA_ROLES,
      .additional = { "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED" }, .replaces = BIT(MASK) },
    { "HerbertTokenizer", "herbert", .role = { NULL, NULL, "<unk>", "</s>", "<pad>", "<s>", "<mask>" } },
    { "BigBirdTokenizer", "big_bird", .role = { "<s>", "</s>", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]" },
      .replaces = ALL },

    { "AlbertTokenizer", "albert nystromformer yoso", .role = ALBERT_ROLES, .replaces = BIT(MASK) },
    { "RemBertTokenizer", "rembert", .role = ALBERT_ROLES, .replaces = BIT(MASK) },
    { "FNetTokenizer", "fnet", .role = { NULL, NULL, "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]" },
      .replaces = BIT(SEP) | BIT(CLS) | BIT(MASK) },
    { "DebertaTokenizer", "deberta", .role = DEBERTA_ROLES },
    { "DebertaV2Tokenizer", "deberta-v2", .role = DEBERTA_ROLES },
    { "XLNetTokenizer", "xlnet", .role = { "<s>", "</s>", "<unk>", "<sep>", "<pad>", "<cls>", "<mask>" },
      .additional = { "<eop>", "<eod>" }, .replaces = BIT(MASK) },
    { "OpenAIGPTTokenizer", NULL, .role = { NULL, NULL, "<unk>" } },
};

/* clang-format on */

const struct meg_hf_class *meg_hf_class_find(const char *name)
{
    static const char suffix[] = "Fast";
    size_t n = strlen(name);

    if (n > strlen(suffix) && strcmp(name + n - strlen(suffix), suffix) == 0)
        n -= strlen(suffix);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strlen(classes[i].name) == n && strncmp(name, classes[i].name, n) == 0)
            return &classes[i];
    }
    return NULL;
}

const char *meg_hf_class_of_model(const char *model_type)
{
    const size_t n = strlen(model_type);

    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        for (const char *s = classes[i].models; s && *s; s += *s == ' ') {
            const size_t len = strcspn(s, " ");

            if (len == n && memcmp(s, model_type, n) == 0)
                return classes[i].name;
            s += len;
        }
    }
    return NULL;
}
