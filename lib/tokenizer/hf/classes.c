/* classes.c - what the tokenizer classes of transformers change in a tokenizer.json. */
#include "tokenizer/hf/classes.h"
#include <stddef.h>
#include <string.h>

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

static const char *const bert_members[] = { "do_lower_case", "strip_accents", "tokenize_chinese_chars", NULL };
static const char *const mpnet_members[] = { "do_lower_case", "strip_accents", NULL };

#define BERT(class) { class, .role = BERT_ROLES, .normalizer_members = bert_members }
#define ROBERTA(class) { class, .role = ROBERTA_ROLES, .replaces = BIT(MASK) }
#define GPT2(class) { class, .role = ENDOFTEXT }
#define T5(class) { class, .role = T5_ROLES, .prefix_space = MEG_HF_PREFIX_UNCHANGED, .more = MEG_HF_MORE_T5 }

static const struct meg_hf_class classes[] = {
    { "PreTrainedTokenizer", .role = NO_ROLES },
    { "TokenizersBackend", .role = NO_ROLES }, /* the name of PreTrainedTokenizerFast in transformers 5 */
    { "ParakeetTokenizer", .role = NO_ROLES },

    GPT2("GPT2Tokenizer"), GPT2("CodeGenTokenizer"),
    { "GPTNeoXTokenizer", .role = { "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", NULL, "" }, .has_template = true },
    { "WhisperTokenizer", .role = ENDOFTEXT, .replaces = BIT(BOS) | BIT(EOS) | BIT(UNK) },
    { "Qwen2Tokenizer", .role = { "", "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>" },
      .replaces = BIT(BOS) | BIT(EOS) | BIT(UNK) | BIT(PAD) },
    { "BloomTokenizer", .role = { "<s>", "</s>", "<unk>", NULL, "<pad>" }, .prefix_space = MEG_HF_PREFIX_NESTED },
    { "CohereTokenizer", .role = { "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>" }, .has_template = true, .adds_bos = true,
      .prefix_space = MEG_HF_PREFIX_NESTED },
    { "CLIPTokenizer", .role = { "<|startoftext|>", "<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>" } },
    { "NougatTokenizer", .role = { "<s>", "</s>", "<unk>", NULL, "<pad>" } },

    { "LlamaTokenizer", .role = LLAMA_ROLES, .has_template = true, .adds_bos = true, .prefix_space = MEG_HF_PREFIX_UNCHANGED,
      .has_legacy_prefix = true },
    { "CodeLlamaTokenizer", .role = LLAMA_ROLES, .has_template = true, .adds_bos = true, .more = MEG_HF_MORE_CODE_LLAMA },
    { "GemmaTokenizer", .role = { "<bos>", "<eos>", "<unk>", NULL, "<pad>" }, .has_template = true, .adds_bos = true },
    T5("T5Tokenizer"), T5("MT5Tokenizer"),
    { "ReformerTokenizer", .role = { NULL, "</s>", "<unk>" } },
    { "XGLMTokenizer", .role = { "<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>" }, .more = MEG_HF_MORE_XGLM },

    BERT("BertTokenizer"), BERT("ConvBertTokenizer"), BERT("DistilBertTokenizer"), BERT("DPRContextEncoderTokenizer"),
    BERT("DPRQuestionEncoderTokenizer"), BERT("ElectraTokenizer"), BERT("LayoutLMTokenizer"), BERT("LxmertTokenizer"),
    BERT("MobileBertTokenizer"), BERT("SqueezeBertTokenizer"),
    { "FunnelTokenizer", .role = { "<s>", "</s>", "<unk>", "<sep>", "<pad>", "<cls>", "<mask>" },
      .normalizer_members = bert_members },
    { "MPNetTokenizer", .role = { "<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>" }, .replaces = ALL,
      .normalizer_members = mpnet_members },

    ROBERTA("RobertaTokenizer"), ROBERTA("LongformerTokenizer"), ROBERTA("BlenderbotTokenizer"),
    ROBERTA("BarthezTokenizer"), ROBERTA("XLMRobertaTokenizer"),
    { "BartTokenizer", .role = ROBERTA_ROLES, .replaces = BIT(MASK), .is_mask_normalized = true },
    { "LEDTokenizer", .role = ROBERTA_ROLES, .replaces = BIT(MASK), .is_mask_normalized = true },
    { "MvpTokenizer", .role = ROBERTA_ROLES, .replaces = ALL },
    { "CamembertTokenizer", .role = ROBERTA_ROLES, .additional = { "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED" }, .replaces = BIT(MASK) },
    { "HerbertTokenizer", .role = { NULL, NULL, "<unk>", "</s>", "<pad>", "<s>", "<mask>" } },
    { "BigBirdTokenizer", .role = { "<s>", "</s>", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]" }, .replaces = ALL },

    { "AlbertTokenizer", .role = ALBERT_ROLES, .replaces = BIT(MASK) },
    { "RemBertTokenizer", .role = ALBERT_ROLES, .replaces = BIT(MASK) },
    { "FNetTokenizer", .role = { NULL, NULL, "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]" },
      .replaces = BIT(SEP) | BIT(CLS) | BIT(MASK) },
    { "DebertaTokenizer", .role = DEBERTA_ROLES }, { "DebertaV2Tokenizer", .role = DEBERTA_ROLES },
    { "XLNetTokenizer", .role = { "<s>", "</s>", "<unk>", "<sep>", "<pad>", "<cls>", "<mask>" }, .additional = { "<eop>", "<eod>" },
      .replaces = BIT(MASK) },
    { "OpenAIGPTTokenizer", .role = { NULL, NULL, "<unk>" } },
};

static const struct {
    const char *class, *models; /* models are separated by spaces */
} class_of_models[] = {
    { "AlbertTokenizer", "albert nystromformer yoso" },
    { "BartTokenizer", "bart" },
    { "BertTokenizer", "bert ernie megatron-bert nezha qdqbert" },
    { "BigBirdTokenizer", "big_bird" },
    { "BlenderbotTokenizer", "blenderbot" },
    { "BloomTokenizer", "bloom" },
    { "CamembertTokenizer", "camembert" },
    { "CodeGenTokenizer", "codegen phi" },
    { "CodeLlamaTokenizer", "code_llama" },
    { "CohereTokenizer", "cohere cohere2" },
    { "ConvBertTokenizer", "convbert" },
    { "DebertaTokenizer", "deberta" },
    { "DebertaV2Tokenizer", "deberta-v2" },
    { "DistilBertTokenizer", "distilbert" },
    { "ElectraTokenizer", "electra" },
    { "FNetTokenizer", "fnet" },
    { "FunnelTokenizer", "funnel" },
    { "GPT2Tokenizer", "dbrx exaone4 flex_olmo gpt2 gpt_bigcode gpt_neo gptj granite granitemoe granitemoehybrid "
                       "granitemoeshared minimax olmo3 opt starcoder2" },
    { "GPTNeoXTokenizer", "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmo2 olmoe rwkv stablelm xlstm" },
    { "GemmaTokenizer", "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma t5gemma" },
    { "HerbertTokenizer", "herbert" },
    { "LEDTokenizer", "led" },
    { "LlamaTokenizer", "arcee deepseek_v2 deepseek_v3 diffllama ernie4_5 ernie4_5_moe jamba jetmoe llama llama4 "
                        "llama4_text ministral mistral mistral3 mixtral persimmon phi3 phimoe zamba zamba2" },
    { "LongformerTokenizer", "longformer" },
    { "MPNetTokenizer", "mpnet" },
    { "MT5Tokenizer", "mt5" },
    { "MobileBertTokenizer", "mobilebert" },
    { "MvpTokenizer", "mvp" },
    { "PreTrainedTokenizer", "bitnet falcon glm glm4 glm4_moe gpt_oss helium modernbert moshi nemotron smollm3" },
    { "Qwen2Tokenizer", "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next" },
    { "ReformerTokenizer", "reformer" },
    { "RemBertTokenizer", "rembert" },
    { "RobertaTokenizer", "data2vec-text ibert mega mra roberta roberta-prelayernorm" },
    { "SqueezeBertTokenizer", "squeezebert" },
    { "T5Tokenizer", "longt5 switch_transformers t5 umt5" },
    { "XGLMTokenizer", "xglm" },
    { "XLMRobertaTokenizer", "xlm-roberta xlm-roberta-xl xmod" },
    { "XLNetTokenizer", "xlnet" },
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

    for (size_t i = 0; i < sizeof class_of_models / sizeof *class_of_models; i++) {
        for (const char *s = class_of_models[i].models; *s; s += *s == ' ') {
            const size_t len = strcspn(s, " ");

            if (len == n && memcmp(s, model_type, n) == 0)
                return class_of_models[i].class;
            s += len;
        }
    }
    return NULL;
}
