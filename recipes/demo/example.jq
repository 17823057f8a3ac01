# Print a line of masked.jsonl, and the predictions for it as percentages.
if .word then
    "\(.text)\n  masked:    \(.word)"
else
    "  predicted: \(.top_logprobs[0] | map("\(.token) \(.logprob | exp * 100 | round)%") | join(", "))\n"
end
