# Compute the fraction of masked words that are predicted correctly, and the fraction that is correct if the most
# frequent word is always guessed.
def accuracy: length / ($masked | length) * 1000 | round / 1000;
($masked | group_by(.word) | max_by(length)) as $most_frequent |
{
    words: ($masked | length),
    accuracy: ([range($masked | length) | select($filled[.].top_logprobs[0][0].token == $masked[.].word)] | accuracy),
    most_frequent: $most_frequent[0].word,
    most_frequent_accuracy: ($most_frequent | accuracy)
}
