// A sweep of few tokens through all layers of a transformer over a paged cache, as the torch modules in nn/ describe it.
//
// Sums, the residual stream and what lies between a linear map and its activation are float32; what a linear map reads, and keys and
// values, are of the model's type.
#include <cmath>
#include <memory>
#include <new>
#include <type_traits>

#include "attention.h"
#include "greedy.h"
#include "linear.h"

namespace {

struct Norm {
    const float *weight, *bias;
};

struct Layer {
    Norm attention_norm, feed_forward_norm;
    Linear qkv, output, up, down;
    float scale;
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_size, feed_forward;
    int32_t bfloat16, rms, post, residual_after_norm, gated, activation;
    float epsilon;
    const float* slopes;
    const Layer* layer;
    Norm final_norm;
    int32_t has_final_norm;
};

// x: (tokens, hidden) in, and out. cos, sin: float32 (tokens, head_size) or null. positions: of the tokens in their sequences.
// places: where their keys and values go. seats: their rows in the table of pages. scratch: as many bytes as scratch_bytes says.
struct Sweep {
    int64_t tokens;
    void* x;
    const float *cos, *sin;
    const int64_t *positions, *places;
    const int32_t *seats, *table;
    int64_t table_stride, page_size;
    void *keys, *values;
    int64_t layer_stride;
    void* scratch;
};

enum Activation { RELU, RELU_SQUARED, GELU, GELU_TANH, GELU_QUICK, SILU, TANH, SIGMOID, MISH, LEAKY_RELU, IDENTITY };

Floats tanh_of(Floats x) {
    // Near zero, where 1 - 1 would be left of the formula, by its series.
    const Floats square = x * x;
    const Floats series = x * (1.0f - square * (0.333333333f - square * (0.133333333f - square * 0.0539682540f)));
    const Floats size = x < splat(0.0f) ? -x : x;
    const Floats e = exponential(-2.0f * size);
    const Floats far = (1.0f - e) / (1.0f + e);
    return size < splat(0.2f) ? series : x < splat(0.0f) ? -far : far;
}

Floats activate(Floats x, int kind) {
    switch (kind) {
        case RELU: return x < splat(0.0f) ? splat(0.0f) : x;
        case RELU_SQUARED: x = x < splat(0.0f) ? splat(0.0f) : x; return x * x;
        case GELU: {
            for (int i = 0; i < W; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
            return x;
        }
        case GELU_TANH: return 0.5f * x * (1.0f + tanh_of(0.79788456f * (x + 0.044715f * x * x * x)));
        case GELU_QUICK: return x / (1.0f + exponential(-1.702f * x));
        case SILU: return x / (1.0f + exponential(-x));
        case TANH: return tanh_of(x);
        case SIGMOID: return 1.0f / (1.0f + exponential(-x));
        case MISH: {
            const Floats e = exponential(x > splat(20.0f) ? splat(20.0f) : x);
            const Floats grown = e * (e + 2.0f);
            return x * (grown / (grown + 2.0f));
        }
        case LEAKY_RELU: return x < splat(0.0f) ? 0.01f * x : x;
        default: return x;
    }
}

int64_t rounded(int64_t count) { return (count + 63) / 64 * 64; }

// Where everything lies between the phases; rows of each are a multiple of 64 numbers apart.
template <class T> struct Room {
    Room(const Model& m, int64_t tokens, int64_t parts, char* at) {
        hidden = rounded(m.hidden), heads = rounded((m.heads + 2 * m.kv_heads) * m.head_size);
        attended_width = rounded(m.heads * m.head_size), inner = rounded(m.feed_forward), up_width = rounded((1 + m.gated) * m.feed_forward);
        char* const begin = at;
        const auto take = [&](auto*& p, int64_t count) {
            p = (std::remove_reference_t<decltype(p)>)at;
            at += rounded(count * sizeof *p);
        };
        take(shared, 1);
        take(x, tokens * hidden);
        take(base, tokens * hidden);
        take(qkv, tokens * heads);
        take(up, tokens * up_width);
        take(partial, tokens * parts * m.heads * m.head_size);
        take(most, tokens * parts * m.heads);
        take(total, tokens * parts * m.heads);
        const int64_t rows = (tokens + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        take(normed, rows * hidden);
        take(attended, rows * attended_width);
        take(activated, rows * inner);
        bytes = at - begin;
    }
    int64_t hidden, heads, attended_width, inner, up_width, bytes;
    Shared* shared;
    float *x, *base, *qkv, *up, *partial, *most, *total;
    T *normed, *attended, *activated;
};

int64_t parts_of(const Sweep& s) {
    int64_t longest = 0;
    for (int64_t t = 0; t < s.tokens; t++) longest = s.positions[t] + 1 > longest ? s.positions[t] + 1 : longest;
    return (longest + PART - 1) / PART;
}

template <class T> class Run {
  public:
    Run(const Model& model, const Sweep& sweep, const Room<T>& room, int64_t parts, Team team)
        : m(model), s(sweep), room(room), parts(parts), team(team) {}

    void all() {
        const Tiles tiles;
        team.share(s.tokens, [&](int64_t t, int64_t) {
            const T* from = (const T*)s.x + t * m.hidden;
            for (int64_t i = 0; i < m.hidden; i++) room.x[t * room.hidden + i] = widen(from[i]);
            // What linear maps read beyond their inputs meets weights of zero, and must be finite.
            for (int64_t i = m.hidden; i < room.hidden; i++) narrow(0, room.normed + t * room.hidden + i);
            for (int64_t i = m.heads * m.head_size; i < room.attended_width; i++) narrow(0, room.attended + t * room.attended_width + i);
            for (int64_t i = m.feed_forward; i < room.inner; i++) narrow(0, room.activated + t * room.inner + i);
        });
        for (int64_t i = 0; i < m.layers; i++) layer(i);
        team.share(s.tokens, [&](int64_t t, int64_t) {
            T* to = (T*)s.x + t * m.hidden;
            const float* x = room.x + t * room.hidden;
            if (m.has_final_norm) return norm(m.final_norm, x, to, nullptr);
            for (int64_t i = 0; i < m.hidden; i++) narrow(x[i], to + i);
        });
    }

  private:
    void layer(int64_t index) {
        const Layer& l = m.layer[index];
        const Linear* after = index + 1 < m.layers ? &m.layer[index + 1].qkv : nullptr;
        if (m.post) copy(); else norms(l.attention_norm);
        linear(l.qkv, room.normed, room.hidden, &l.output, [&](int64_t t, int64_t first, int64_t count, const float* y) {
            memcpy(room.qkv + t * room.heads + first, y, 4 * count);
        });
        attention(l.scale, index);
        const float* residual = m.post || !m.residual_after_norm ? room.x : room.base;
        const auto add = [&](int64_t t, int64_t first, int64_t count, const float* y) {
            const int64_t at = t * room.hidden + first;
            for (int64_t i = 0; i < count; i++) room.x[at + i] = residual[at + i] + y[i];
        };
        linear(l.output, room.attended, room.attended_width, &l.up, add);
        norms(m.post ? l.attention_norm : l.feed_forward_norm);
        if (m.post) residual = room.base;
        feed_forward(l);
        linear(l.down, room.activated, room.inner, after, add);
        if (m.post) norms(l.feed_forward_norm);
        if (m.post) carry();
    }

    // The norm of x: `normed` is it, and `base` its float32.
    void norms(const Norm& weights) {
        team.share(s.tokens, [&](int64_t t, int64_t) { norm(weights, room.x + t * room.hidden, room.normed + t * room.hidden, room.base + t * room.hidden); });
    }

    void copy() {
        team.share(s.tokens, [&](int64_t t, int64_t) {
            for (int64_t i = 0; i < m.hidden; i++) narrow(room.x[t * room.hidden + i], room.normed + t * room.hidden + i);
        });
    }

    void carry() {
        team.share(s.tokens, [&](int64_t t, int64_t) { memcpy(room.x + t * room.hidden, room.base + t * room.hidden, 4 * m.hidden); });
    }

    void norm(const Norm& weights, const float* x, T* to, float* also) const {
        float mean = 0;
        if (!m.rms) mean = total(x, [](Floats v) { return v; }) / m.hidden;
        const Floats centre = splat(mean);
        const float square = total(x, [&](Floats v) { return (v - centre) * (v - centre); }, mean * mean);
        const float factor = 1.0f / sqrtf(square / m.hidden + m.epsilon);
        for (int64_t i = 0; i < m.hidden; i++) {
            float y = (x[i] - mean) * factor;
            if (weights.weight) y *= weights.weight[i];
            if (weights.bias) y += weights.bias[i];
            narrow(y, to + i);
            if (also) also[i] = y;
        }
    }

    // The sum of f over a row. beyond: f of the zeros that fill up the last vector.
    template <class F> float total(const float* x, F f, float beyond = 0) const {
        Floats sums = {};
        int64_t i = 0;
        for (; i + W <= m.hidden; i += W) sums += f(load(x + i));
        if (i < m.hidden) sums += f(load_part(x + i, m.hidden - i));
        return sum(sums) - (i < m.hidden ? float(W - (m.hidden - i)) * beyond : 0.0f);
    }

    // epilogue(token, first output, count, values) for parts of x weight^T + bias. then: the map whose weights are wanted next.
    template <class F> void linear(const Linear& map, const T* x, int64_t width, const Linear* then, F epilogue) {
        const void* onward = then ? chunk_at<T>(*then, team.first(chunks_of(*then))) : nullptr;
        team.share(chunks_of(map), [&](int64_t chunk, int64_t next) {
            float y[MOST_TOKENS * WIDEST_CHUNK];
            const int64_t count = multiply(map, chunk, s.tokens, x, width, y, next < 0 ? onward : chunk_at<T>(map, next));
            for (int64_t t = 0; t < s.tokens; t++) epilogue(t, chunk * chunk_size(map), count, y + t * WIDEST_CHUNK);
        });
    }

    void feed_forward(const Layer& l) {
        const int64_t width = m.feed_forward, size = chunk_size(l.up);
        if (!m.gated) {
            linear(l.up, room.normed, room.hidden, &l.down, [&](int64_t t, int64_t first, int64_t count, const float* y) {
                T* to = room.activated + t * room.inner + first;
                for (int64_t i = 0; i < count; i += W) put(activate(i + W <= count ? load(y + i) : load_part(y + i, count - i), m.activation), to + i, count - i);
            });
        } else if (width % size == 0) {
            // Gate and value of the same place by the same thread, so that they meet at once.
            const int64_t chunks = width / size;
            const void* onward = chunk_at<T>(l.down, team.first(chunks_of(l.down)));
            team.share(chunks, [&](int64_t chunk, int64_t next) {
                float gate[MOST_TOKENS * WIDEST_CHUNK], value[MOST_TOKENS * WIDEST_CHUNK];
                multiply(l.up, chunk, s.tokens, room.normed, room.hidden, gate, chunk_at<T>(l.up, chunk + chunks));
                multiply(l.up, chunk + chunks, s.tokens, room.normed, room.hidden, value, next < 0 ? onward : chunk_at<T>(l.up, next));
                for (int64_t t = 0; t < s.tokens; t++)
                    for (int64_t i = 0; i < size; i += W) {
                        const int64_t at = t * WIDEST_CHUNK + i;
                        put(activate(load(gate + at), m.activation) * load(value + at), room.activated + t * room.inner + chunk * size + i, size - i);
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
                    put(activate(load_part(gate + i, left), m.activation) * load_part(value + i, left), room.activated + t * room.inner + i, left);
                }
            });
        }
    }

    static void put(Floats v, T* to, int64_t count) {
        for (int64_t i = 0; i < W && i < count; i++) narrow(v[i], to + i);
    }

    void attention(float scale, int64_t index) {
        const int64_t size = m.head_size, group = m.heads / m.kv_heads, kv = m.kv_heads * size;
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
        const int64_t bunches = (group + HEADS - 1) / HEADS;
        team.share(s.tokens * parts * m.kv_heads * bunches, [&](int64_t task, int64_t) {
            const int64_t bunch = task % bunches, head = task / bunches % m.kv_heads, part = task / bunches / m.kv_heads % parts;
            const int64_t t = task / bunches / m.kv_heads / parts, context = s.positions[t] + 1;
            const int64_t begin = part * PART, end = begin + PART < context ? begin + PART : context;
            if (begin >= context) return;
            const int32_t* table = s.table + s.seats[t] * s.table_stride;
            const Pages<T> k{keys + head * size, table, s.page_size, kv}, v{values + head * size, table, s.page_size, kv};
            const int64_t query = head * group + bunch * HEADS, at = (t * parts + part) * m.heads + query;
            const float* slopes = m.slopes ? m.slopes + query : nullptr;
            const float* q = room.qkv + t * room.heads + query * size;
            float *out = room.partial + at * size, *most = room.most + at, *total = room.total + at;
            switch (group - bunch * HEADS) {
                case 1: attend<T, 1>(q, size, k, v, begin, end, context - 1, slopes, out, most, total); break;
                case 2: attend<T, 2>(q, size, k, v, begin, end, context - 1, slopes, out, most, total); break;
                case 3: attend<T, 3>(q, size, k, v, begin, end, context - 1, slopes, out, most, total); break;
                default: attend<T, 4>(q, size, k, v, begin, end, context - 1, slopes, out, most, total);
            }
            if (parts == 1)
                for (int64_t h = 0; h < HEADS && h < group - bunch * HEADS; h++) combine(t, query + h);
        });
        if (parts > 1) team.share(s.tokens * m.heads, [&](int64_t task, int64_t) { combine(task / m.heads, task % m.heads); });
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
        for (int64_t i = 0; i < size; i++) {
            float value = 0;
            for (int64_t part = 0; part < own; part++) value += room.partial[at(part) * size + i] * (expf(room.most[at(part)] - most) / sum);
            narrow(value, to + i);
        }
    }

    const Model& m;
    const Sweep& s;
    const Room<T>& room;
    const int64_t parts;
    Team team;
};

// What the threads of the OpenMP that torch runs on are started and told apart with.
struct OpenMP {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*thread)();
    int (*threads)();
    int32_t wanted;
};

template <class F> void in_parallel(const OpenMP& omp, F f) {
    if (omp.wanted < 2) return f(1, 0);
    struct Call {
        const OpenMP& omp;
        F& f;
    } call{omp, f};
    const auto enter = [](void* data) {
        Call& call = *(Call*)data;
        call.f(call.omp.threads(), call.omp.thread());
    };
    omp.parallel(enter, &call, unsigned(omp.wanted < MOST_THREADS ? omp.wanted : MOST_THREADS), 0);
}

template <class T> void sweep(const Model& model, const Sweep& s, const OpenMP& omp) {
    const int64_t parts = parts_of(s);
    const Room<T> room(model, s.tokens, parts, (char*)s.scratch);
    new (room.shared) Shared;
    in_parallel(omp, [&](int threads, int id) { Run<T>(model, s, room, parts, Team(*room.shared, threads, id)).all(); });
}

template <class T> void project(const Linear& map, int64_t rows, const T* x, T* out, const OpenMP& omp) {
    Shared shared;
    const auto put = [&](const float* y, int64_t row_stride, int64_t stride, int64_t chunk, int64_t count) {
        for (int64_t t = 0; t < rows; t++) {
            T* to = out + t * map.outputs + chunk * chunk_size(map);
            for (int64_t i = 0; i < count; i++) narrow(y[t * row_stride + i * stride], to + i);
        }
    };
#if TILES
    if constexpr (sizeof(T) == 2)
        if (map.inputs % 32 == 0 && map.inputs <= WIDEST_COLUMNS && map.outputs % TILE_ROWS == 0 && tiles_allowed()) {
            const int64_t width = rows > TILE_ROWS ? 2 * TILE_ROWS : TILE_ROWS;
            static thread_local Bfloat16 columns[WIDEST_COLUMNS * 2 * TILE_ROWS];
            for (int64_t k = 0; k < map.inputs; k += 2)
                for (int64_t t = 0; t < width; t++)
                    for (int64_t i = 0; i < 2; i++) columns[k * width + 2 * t + i] = t < rows ? x[t * map.inputs + k + i] : T{0};
            const Bfloat16* from = columns;  // of this thread, which the others read
            return in_parallel(omp, [&](int threads, int id) {
                const Tiles tiles;
                Team(shared, threads, id).share(map.outputs / TILE_ROWS, [&](int64_t chunk, int64_t next) {
                    float y[TILE_ROWS * 2 * TILE_ROWS];
                    const T* w = (const T*)chunk_at<T>(map, chunk);
                    rows_by_tiles(w, map.inputs, width, from, y, next < 0 ? w : (const T*)chunk_at<T>(map, next));
                    put(y, 1, width, chunk, TILE_ROWS);
                });
            });
        }
#endif
    in_parallel(omp, [&](int threads, int id) {
        Team(shared, threads, id).share(chunks_of(map), [&](int64_t chunk, int64_t next) {
            float y[MOST_TOKENS * WIDEST_CHUNK];
            const int64_t count = multiply(map, chunk, rows, x, map.inputs, y, next < 0 ? nullptr : chunk_at<T>(map, next));
            put(y, WIDEST_CHUNK, 1, chunk, count);
        });
    });
}

template <class T> void choose(int64_t rows, int64_t vocabulary, const T* scores, int64_t* tokens, float* logprobs, const OpenMP& omp) {
    const int64_t parts = (vocabulary + SCORES - 1) / SCORES;
    const auto found = std::make_unique<Best[]>(rows * parts);
    Shared shared;
    in_parallel(omp, [&](int threads, int id) {
        Team(shared, threads, id).share(rows * parts, [&](int64_t task, int64_t) {
            const int64_t first = task % parts * SCORES, left = vocabulary - first;
            found[task] = best_of(scores + task / parts * vocabulary + first, left < SCORES ? left : SCORES, first);
        });
    });
    for (int64_t row = 0; row < rows; row++) {
        const Best best = best_of(found.get() + row * parts, parts);
        tokens[row] = best.at;
        logprobs[row] = best.total;
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t most_tokens() { return MOST_TOKENS; }

extern "C" __attribute__((visibility("default"))) int64_t scratch_bytes(const Model* model, const Sweep* s) {
    return model->bfloat16 ? Room<Bfloat16>(*model, s->tokens, parts_of(*s), nullptr).bytes : Room<float>(*model, s->tokens, parts_of(*s), nullptr).bytes;
}

extern "C" __attribute__((visibility("default"))) void run_sweep(const Model* model, const Sweep* s, const OpenMP* omp) {
    if (model->bfloat16) sweep<Bfloat16>(*model, *s, *omp); else sweep<float>(*model, *s, *omp);
}

// x (rows, inputs) weight^T -> out (rows, outputs), for a weight without blocks.
extern "C" __attribute__((visibility("default"))) void run_linear(const Linear* map, int32_t bfloat16, int64_t rows, const void* x, void* out, const OpenMP* omp) {
    if (bfloat16) project(*map, rows, (const Bfloat16*)x, (Bfloat16*)out, *omp); else project(*map, rows, (const float*)x, (float*)out, *omp);
}

// scores (rows, vocabulary): the best token of each row, and its log-probability.
extern "C" __attribute__((visibility("default"))) void run_greedy(int32_t bfloat16, int64_t rows, int64_t vocabulary, const void* scores, int64_t* tokens, float* logprobs, const OpenMP* omp) {
    if (bfloat16) choose(rows, vocabulary, (const Bfloat16*)scores, tokens, logprobs, *omp); else choose(rows, vocabulary, (const float*)scores, tokens, logprobs, *omp);
}
