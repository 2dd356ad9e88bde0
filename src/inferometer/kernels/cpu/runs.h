// Tokens that follow one another in a sequence, and attend together.
#pragma once
#include "model.h"

// begins: of `count` runs, their first tokens, and the end of the last. bunches: parts of the query heads of a key head.
struct Runs {
    Runs(const Model& m, const Sweep& s, int64_t parts, int64_t threads) {
        const int64_t group = m.heads / m.kv_heads;
        bunches = (group + HEADS - 1) / HEADS;
        int64_t most = QUERIES / (group < HEADS ? group : HEADS);
        // Shorter ones where threads would have nothing to do.
        while (most > 1 && s.tokens / most * parts * m.kv_heads * bunches < 4 * threads) most /= 2;
        for (int64_t t = 0; t < s.tokens; t++) {
            const bool follows = t && s.seats[t] == s.seats[t - 1] && s.positions[t] == s.positions[t - 1] + 1;
            if (!follows || t - begins[count - 1] == most) begins[count++] = t;
        }
        begins[count] = s.tokens;
    }
    int64_t count = 0, bunches, begins[MOST_TOKENS + 1];
};
