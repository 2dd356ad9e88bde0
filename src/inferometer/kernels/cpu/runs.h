// Tokens that follow one another in a sequence, and attend together.
#pragma once
#include "model.h"

// begins: of `count` runs, their first tokens, and the end of the last. bunches: parts of the query heads of a key head.
// key_heads: of a task; bundles: of so many there are.
struct Runs {
    Runs(const Model& m, const Sweep& s, int64_t parts, int64_t threads) : group(m.heads / m.kv_heads) {
        bunches = (group + HEADS - 1) / HEADS;
        key_heads = bunches > 1 ? 1 : m.kv_heads < KEY_HEADS ? m.kv_heads : KEY_HEADS;
        int64_t most = SHARING / (group < HEADS ? group : HEADS);
        // Smaller tasks where threads would have nothing to do.
        const auto few = [&] { return (s.tokens + most - 1) / most * parts * (m.kv_heads / key_heads) * bunches < 4 * threads; };
        while (key_heads > 1 && few()) key_heads /= 2;
        while (most > 1 && few()) most /= 2;
        bundles = (m.kv_heads + key_heads - 1) / key_heads;
        for (int64_t t = 0; t < s.tokens; t++) {
            const bool follows = t && s.seats[t] == s.seats[t - 1] && s.positions[t] == s.positions[t - 1] + 1;
            if (!follows || t - begins[count - 1] == most) begins[count++] = t;
        }
        begins[count] = s.tokens;
    }

    // run(token, query head) for those of a bunch of some key heads and of some tokens: a key head's all, then the next one's.
    template <class F> void each_query(int64_t head, int64_t heads, int64_t bunch, int64_t first, int64_t end, F run) const {
        const int64_t left = group - bunch * HEADS, some = left < HEADS ? left : HEADS;
        for (int64_t k = head; k < head + heads; k++)
            for (int64_t t = first; t < end; t++)
                for (int64_t h = 0; h < some; h++) run(t, k * group + bunch * HEADS + h);
    }

    const int64_t group;  // query heads of a key head
    int64_t count = 0, bunches, key_heads, bundles, begins[MOST_TOKENS + 1];
};
