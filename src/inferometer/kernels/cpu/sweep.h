// A sweep through all layers of a transformer over a paged cache, as the torch modules in nn/ describe it.
//
// Sums, the residual stream and what lies between a linear map and its activation are float32; what a linear map reads, and keys and
// values, are of the model's type.
#pragma once
#include "activation.h"
#include "norm.h"
#include "runs.h"

template <class T> class Run {
  public:
    Run(const Model& model, const Sweep& sweep, const Room<T>& room, int64_t parts, Team team)
        : m(model), s(sweep), room(room), parts(parts), team(team), runs(model, sweep, parts, team.threads) {}

    void all() {
        const Tiles tiles;
        open();
        for (int64_t i = 0; i < m.layers; i++) {
            attention_half(i);
            feed_forward_half(i);
            if (m.post) end_post(i);
        }
        close();
    }

    // One of the 2 * layers + 1 parts of a sweep whose layers are cut over ranks. Each but the last leaves this rank's part of what is
    // added to x in `sums`, and the next one finds there what all ranks add.
    void part_between_sums(int64_t number) {
        const Tiles tiles;
        if (number == 0) open();
        else add_sums(number - 1);
        if (number == 2 * m.layers) close();
        else if (number % 2 == 0) attention_half(number / 2);
        else feed_forward_half(number / 2);
    }

  private:
    void open() {
        team.share(s.tokens, [&](int64_t t, int64_t) {
            const T* from = (const T*)s.x + t * m.hidden;
            for (int64_t i = 0; i < m.hidden; i++) room.x[t * room.hidden + i] = widen(from[i]);
            // What linear maps read beyond their inputs meets weights of zero, and must be finite.
            for (int64_t i = m.hidden; i < room.hidden; i++) narrow(0, room.normed + t * room.hidden + i);
            for (int64_t i = m.heads * m.head_size; i < room.attended_width; i++) narrow(0, room.attended + t * room.attended_width + i);
            for (int64_t i = m.feed_forward; i < room.inner; i++) narrow(0, room.activated + t * room.inner + i);
        });
    }

    void close() {
        team.share(s.tokens, [&](int64_t t, int64_t) {
            T* to = (T*)s.x + t * m.hidden;
            const float* x = room.x + t * room.hidden;
            if (m.has_final_norm) return norm(m, m.final_norm, x, to, nullptr);
            for (int64_t i = 0; i < m.hidden; i++) narrow(x[i], to + i);
        });
    }

    void attention_half(int64_t index) {
        const Layer& l = m.layer[index];
        if (m.post) copy(); else norms(l.attention_norm);
        linear(l.qkv, room.normed, room.hidden, &l.output, [&](int64_t t, int64_t first, int64_t count, const float* y) {
            memcpy(room.qkv + t * room.heads + first, y, 4 * count);
        });
        attention(l.scale, index);
        linear(l.output, room.attended, room.attended_width, &l.up, adding(m.post || !m.residual_after_norm ? room.x : room.base));
    }

    void feed_forward_half(int64_t index) {
        const Layer& l = m.layer[index];
        norms(m.post ? l.attention_norm : l.feed_forward_norm);
        feed_forward(l);
        const Linear* after = index + 1 < m.layers ? &m.layer[index + 1].qkv : nullptr;
        linear(l.down, room.activated, room.inner, after, adding(m.post || m.residual_after_norm ? room.base : room.x));
    }

    void end_post(int64_t index) {
        norms(m.layer[index].feed_forward_norm);
        carry();
    }

    // What takes in a linear map's results: x becomes the residual plus them, or they are left to be summed up over the ranks.
    auto adding(const float* residual) {
        return [this, residual](int64_t t, int64_t first, int64_t count, const float* y) {
            if (s.sums) {
                memcpy(s.sums + t * m.hidden + first, y, 4 * count);
                return;
            }
            const int64_t at = t * room.hidden + first;
            for (int64_t i = 0; i < count; i++) room.x[at + i] = residual[at + i] + y[i];
        };
    }

    // x becomes the residual of the half before plus the sums over the ranks.
    void add_sums(int64_t half) {
        const bool fed = half % 2;
        const float* residual = (m.post ? fed : m.residual_after_norm) ? room.base : room.x;
        team.share(s.tokens, [&](int64_t t, int64_t) {
            const int64_t at = t * room.hidden;
            for (int64_t i = 0; i < m.hidden; i++) room.x[at + i] = residual[at + i] + s.sums[t * m.hidden + i];
        });
        if (fed && m.post) end_post(half / 2);
    }

    // The norm of x: `normed` is it, and `base` its float32.
    void norms(const Norm& weights) {
        team.share(s.tokens, [&](int64_t t, int64_t) {
            const int64_t at = t * room.hidden;
            norm(m, weights, room.x + at, room.normed + at, room.base + at);
        });
    }

    void copy() {
        team.share(s.tokens, [&](int64_t t, int64_t) {
            for (int64_t i = 0; i < m.hidden; i++) narrow(room.x[t * room.hidden + i], room.normed + t * room.hidden + i);
        });
    }

    void carry() {
        team.share(s.tokens, [&](int64_t t, int64_t) { memcpy(room.x + t * room.hidden, room.base + t * room.hidden, 4 * m.hidden); });
    }

    // epilogue(token, first output, count, values) for parts of x weight^T + bias. then: the map whose weights are wanted next.
    template <class F> void linear(const Linear& map, const T* x, int64_t width, const Linear* then, F epilogue) {
        prepare_all(map, x, width);
        const void* onward = then ? chunk_at<T>(*then, team.first(chunks_of(*then))) : nullptr;
        share_rows(chunks_of(map), [&](int64_t chunk, int64_t first, int64_t rows, int64_t next) {
            float y[MOST_TOKENS * WIDEST_CHUNK];
            const int64_t count = part(map, chunk, first, rows, x, width, y, next < 0 ? onward : chunk_at<T>(map, next));
            for (int64_t t = 0; t < rows; t++) epilogue(first + t, chunk * chunk_size(map), count, y + t * WIDEST_CHUNK);
        });
    }

    // Readies x for a map in few bits; others read it as it is.
    void prepare_all(const Linear& map, const T* x, int64_t width) {
        if (!map.kind) return;
        team.share(s.tokens, [&](int64_t t, int64_t) {
            room.units[t] = prepare(map, x + t * width, room.prepared + t * room.prepared_width, room.prepared_width);
        });
    }

    int64_t part(const Linear& map, int64_t chunk, int64_t first, int64_t rows, const T* x, int64_t width, float* y, const void* ahead) {
        if (!map.kind) return multiply(map, chunk, rows, x + first * width, width, y, ahead);
        const float* prepared = room.prepared + first * room.prepared_width;
        return multiply_few_bits<T>(map, chunk, rows, prepared, room.prepared_width, room.units + first, y);
    }

    // run(chunk, first row, rows, next chunk) for each of `chunks` and all rows: those of many tokens in more tasks than one where threads
    // would have nothing to do. The next is what this thread is likely to run then, -1 if nothing of its own is left.
    template <class F> void share_rows(int64_t chunks, F run) {
        int64_t most = s.tokens;
        while (most > 4 * TILE_ROWS && (s.tokens + most - 1) / most * chunks < 4 * team.threads)
            most = (most / 2 + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        const int64_t cuts = (s.tokens + most - 1) / most;
        team.share(chunks * cuts, [&](int64_t task, int64_t next) {
            const int64_t first = task % cuts * most, left = s.tokens - first;
            run(task / cuts, first, left < most ? left : most, next < 0 ? -1 : next / cuts);
        });
    }

    void feed_forward(const Layer& l) {
        const int64_t width = m.feed_forward, size = chunk_size(l.up);
        if (!m.gated) {
            linear(l.up, room.normed, room.hidden, &l.down, [&](int64_t t, int64_t first, int64_t count, const float* y) {
                T* to = room.activated + t * room.inner + first;
                for (int64_t i = 0; i < count; i += W) {
                    const Floats v = i + W <= count ? load(y + i) : load_part(y + i, count - i);
                    put(activate(v, m.activation), to + i, count - i);
                }
            });
        } else if (width % size == 0) {
            // Gate and value of the same place by the same thread, so that they meet at once.
            const int64_t chunks = width / size;
            prepare_all(l.up, room.normed, room.hidden);
            const void* onward = chunk_at<T>(l.down, team.first(chunks_of(l.down)));
            share_rows(chunks, [&](int64_t chunk, int64_t first, int64_t rows, int64_t next) {
                float gate[MOST_TOKENS * WIDEST_CHUNK], value[MOST_TOKENS * WIDEST_CHUNK];
                part(l.up, chunk, first, rows, room.normed, room.hidden, gate, chunk_at<T>(l.up, chunk + chunks));
                part(l.up, chunk + chunks, first, rows, room.normed, room.hidden, value, next < 0 ? onward : chunk_at<T>(l.up, next));
                for (int64_t t = 0; t < rows; t++)
                    for (int64_t i = 0; i < size; i += W) {
                        const int64_t at = t * WIDEST_CHUNK + i;
                        T* const to = room.activated + (first + t) * room.inner + chunk * size + i;
                        put(activate(load(gate + at), m.activation) * load(value + at), to, size - i);
                    }
            });
        } else {
            linear(l.up, room.normed, room.hidden, &l.down, [&](int64_t t, int64_t first, int64_t count, const float* y) {
                memcpy(room.up + t * room.up_width + first, y, 4 * count);
            });
            team.share(s.tokens, [&](int64_t t, int64_t) {
                const float *gate = room.up + t * room.up_width, *value = gate + width;
                for (int64_t i = 0; i < width; i += W) {
                    const int64_t left = width - i < W ? width - i : W;
                    const Floats v = activate(load_part(gate + i, left), m.activation) * load_part(value + i, left);
                    put(v, room.activated + t * room.inner + i, left);
                }
            });
        }
    }

    static void put(Floats v, T* to, int64_t count) {
        for (int64_t i = 0; i < W && i < count; i++) narrow(v[i], to + i);
    }

    void attention(float scale, int64_t index) {
        const int64_t size = m.head_size, kv = m.kv_heads * size;
        T* const keys = (T*)s.keys + index * s.layer_stride;
        T* const values = (T*)s.values + index * s.layer_stride;
        // All keys are in place before any is read: a sweep may bring several tokens of a sequence.
        team.share(s.tokens * (m.heads + 2 * m.kv_heads), [&](int64_t task, int64_t) {
            const int64_t t = task / (m.heads + 2 * m.kv_heads), head = task % (m.heads + 2 * m.kv_heads);
            float* x = room.qkv + t * room.heads + head * size;
            if (head < m.heads + m.kv_heads && s.cos) rotate(x, t);
            if (head < m.heads) {
                for (int64_t i = 0; i < size; i++) x[i] *= scale;
                return;
            }
            if (s.places[t] < 0) return;
            T* to = head < m.heads + m.kv_heads ? keys + (head - m.heads) * size : values + (head - m.heads - m.kv_heads) * size;
            to += s.places[t] * kv;
            for (int64_t i = 0; i < size; i++) narrow(x[i], to + i);
        });
        team.share(runs.count * runs.bunches * runs.bundles * parts, [&](int64_t task, int64_t) {
            // Who reads the same keys does so behind one another.
            const int64_t run = task % runs.count, bunch = task / runs.count % runs.bunches;
            const int64_t bundle = task / runs.count / runs.bunches % runs.bundles, part = task / runs.count / runs.bunches / runs.bundles;
            const int64_t head = bundle * runs.key_heads, left = m.kv_heads - head, heads = left < runs.key_heads ? left : runs.key_heads;
            const int64_t end = runs.begins[run + 1];
            int64_t first = runs.begins[run];
            while (first < end && s.positions[first] < part * PART) first++;
            if (first == end) return;  // none of them comes as far as this part
            Query queries[QUERIES];
            int count = 0;
            runs.each_query(head, heads, bunch, first, end, [&](int64_t t, int64_t h) { queries[count++] = query_of(t, h, part); });
            const int32_t* table = s.table + s.seats[first] * s.table_stride;
            const Pages<T> k{keys + head * size, table, s.page_size, kv}, v{values + head * size, table, s.page_size, kv};
            attend(queries, count / int(heads), int(heads), size, k, v, part * PART);
            if (parts == 1) runs.each_query(head, heads, bunch, first, end, [&](int64_t t, int64_t h) { combine(t, h); });
        });
        if (parts > 1) team.share(s.tokens * m.heads, [&](int64_t task, int64_t) { combine(task / m.heads, task % m.heads); });
    }

    // Of one head of one token, which attends to some of that part.
    Query query_of(int64_t t, int64_t head, int64_t part) const {
        const int64_t at = (t * parts + part) * m.heads + head, ahead = part * PART - s.positions[t], keys = 1 - ahead;
        return {
            room.qkv + t * room.heads + head * m.head_size, keys < PART ? keys : PART, ahead, m.slopes ? m.slopes[head] : 0.0f,
            room.partial + at * m.head_size, room.most + at, room.total + at,
        };
    }

    void rotate(float* x, int64_t t) const {
        const float *cos = s.cos + t * m.head_size, *sin = s.sin + t * m.head_size;
        const int64_t half = m.head_size / 2;
        for (int64_t i = 0; i < half; i++) {
            const float low = x[i], high = x[i + half];
            x[i] = low * cos[i] + high * sin[i];
            x[i + half] = high * cos[i + half] + low * sin[i + half];
        }
    }

    // The parts of a token's context, each with a scale of its own, to the attention of one head.
    void combine(int64_t t, int64_t head) const {
        const int64_t own = s.positions[t] / PART + 1, size = m.head_size;
        const auto at = [&](int64_t part) { return (t * parts + part) * m.heads + head; };
        float most = room.most[at(0)], sum = 0;
        for (int64_t part = 1; part < own; part++) most = room.most[at(part)] > most ? room.most[at(part)] : most;
        T* to = room.attended + t * room.attended_width + head * size;
        for (int64_t part = 0; part < own; part++) sum += room.total[at(part)] * expf(room.most[at(part)] - most);
        for (int64_t part = 0; part < own; part++) room.total[at(part)] = expf(room.most[at(part)] - most) / sum;  // now its weight
        for (int64_t i = 0; i < size; i += W) {
            const int64_t left = size - i;
            Floats values = {};
            for (int64_t part = 0; part < own; part++) {
                const float* from = room.partial + at(part) * size + i;
                values = multiply_add(left < W ? load_part(from, left) : load(from), splat(room.total[at(part)]), values);
            }
            put(values, to + i, left);
        }
    }

    const Model& m;
    const Sweep& s;
    const Room<T>& room;
    const int64_t parts;
    Team team;
    const Runs runs;
};
