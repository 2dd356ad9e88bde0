// What the library offers, all of it on the threads that torch has.
#include <memory>
#include <new>

#include "greedy.h"
#include "sweep.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

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

// number: of a part between two sums over ranks; -1 for the whole sweep of a rank alone.
template <class T> void sweep(const Model& model, const Sweep& s, int64_t number, const OpenMP& omp) {
    const int64_t parts = parts_of(s);
    const Room<T> room(model, s.tokens, parts, (char*)s.scratch);
    new (room.shared) Shared;
    in_parallel(omp, [&](int threads, int id) {
        Run<T> run(model, s, room, parts, Team(*room.shared, threads, id));
        if (number < 0) run.all();
        else run.part_between_sums(number);
    });
}

// out: (rows, outputs).
template <class T> void project_few_bits(const Linear& map, int64_t rows, const T* x, T* out, const OpenMP& omp) {
    Shared shared;
    const int64_t width = prepared_width(map.inputs);
    const std::unique_ptr<float[]> prepared(new float[rows * width]);
    float units[MOST_TOKENS];
    in_parallel(omp, [&](int threads, int id) {
        Team team(shared, threads, id);
        team.share(rows, [&](int64_t t, int64_t) { units[t] = prepare(map, x + t * map.inputs, prepared.get() + t * width, width); });
        team.share(chunks_of(map), [&](int64_t chunk, int64_t) {
            float y[MOST_TOKENS * WIDEST_CHUNK];
            const int64_t count = multiply_few_bits<T>(map, chunk, rows, prepared.get(), width, units, y);
            for (int64_t t = 0; t < rows; t++)
                for (int64_t i = 0; i < count; i++) narrow(y[t * WIDEST_CHUNK + i], out + t * map.outputs + chunk * chunk_size(map) + i);
        });
    });
}

template <class T> void project(const Linear& map, int64_t rows, const T* x, T* out, const OpenMP& omp) {
    if (map.kind) return project_few_bits(map, rows, x, out, omp);
    Shared shared;
    const auto put = [&](const float* y, int64_t row_stride, int64_t stride, int64_t chunk, int64_t count, int64_t first, int64_t some) {
        for (int64_t t = 0; t < some; t++) {
            T* to = out + (first + t) * map.outputs + chunk * chunk_size(map);
            for (int64_t i = 0; i < count; i++) narrow(y[t * row_stride + i * stride], to + i);
        }
    };
#if TILES
    if constexpr (sizeof(T) == 2)
        if (map.inputs % 32 == 0 && map.outputs % TILE_ROWS == 0 && tiles_allowed()) {
            // Rows as columns, 16 or 32 of them at a time: [rows / width][inputs / 2][width][2].
            const int64_t width = rows > TILE_ROWS ? MOST_TILED : TILE_ROWS, turned = (rows + width - 1) / width * width;
            const std::unique_ptr<Bfloat16[]> columns(new Bfloat16[turned * map.inputs]);
            for (int64_t row = 0; row < turned; row += width)
                for (int64_t k = 0; k < map.inputs; k += 2)
                    for (int64_t t = 0; t < width; t++)
                        for (int64_t i = 0; i < 2; i++)
                            columns[row * map.inputs + k * width + 2 * t + i] = row + t < rows ? x[(row + t) * map.inputs + k + i] : T{0};
            return in_parallel(omp, [&](int threads, int id) {
                const Tiles tiles;
                Team(shared, threads, id).share(map.outputs / TILE_ROWS, [&](int64_t chunk, int64_t next) {
                    const T *w = (const T*)chunk_at<T>(map, chunk), *ahead = next < 0 ? w : (const T*)chunk_at<T>(map, next);
                    for (int64_t row = 0; row < rows; row += width) {
                        float y[TILE_ROWS * MOST_TILED];
                        rows_by_tiles(w, map.inputs, width, columns.get() + row * map.inputs, y, ahead);
                        put(y, 1, width, chunk, TILE_ROWS, row, rows - row < width ? rows - row : width);
                    }
                });
            });
        }
#endif
    in_parallel(omp, [&](int threads, int id) {
        Team(shared, threads, id).share(chunks_of(map), [&](int64_t chunk, int64_t next) {
            float y[MOST_TOKENS * WIDEST_CHUNK];
            const int64_t count = multiply(map, chunk, rows, x, map.inputs, y, next < 0 ? nullptr : chunk_at<T>(map, next));
            put(y, WIDEST_CHUNK, 1, chunk, count, 0, rows);
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

EXPORTED int64_t most_tokens() { return MOST_TOKENS; }

// Whether libraries have units for products of whole matrices of bfloat16 here, or may have them: AMX, and whatever is not x86.
EXPORTED int32_t matrix_units() {
#if defined(__x86_64__)
    return tiles_allowed();
#else
    return 1;
#endif
}

EXPORTED int64_t scratch_bytes(const Model* model, const Sweep* s) {
    const int64_t parts = parts_of(*s);
    return model->bfloat16 ? Room<Bfloat16>(*model, s->tokens, parts, nullptr).bytes : Room<float>(*model, s->tokens, parts, nullptr).bytes;
}

EXPORTED void run_sweep(const Model* model, const Sweep* s, const OpenMP* omp) {
    if (model->bfloat16) sweep<Bfloat16>(*model, *s, -1, *omp);
    else sweep<float>(*model, *s, -1, *omp);
}

// Part `number` of the 2 * layers + 1 between which `sums` are added up over the ranks; in their order, with one scratch.
EXPORTED void run_part(const Model* model, const Sweep* s, int64_t number, const OpenMP* omp) {
    if (model->bfloat16) sweep<Bfloat16>(*model, *s, number, *omp);
    else sweep<float>(*model, *s, number, *omp);
}

// x (rows, inputs) weight^T -> out (rows, outputs), for a weight without blocks.
EXPORTED void run_linear(const Linear* map, int32_t bfloat16, int64_t rows, const void* x, void* out, const OpenMP* omp) {
    if (bfloat16) project(*map, rows, (const Bfloat16*)x, (Bfloat16*)out, *omp);
    else project(*map, rows, (const float*)x, (float*)out, *omp);
}

// scores (rows, vocabulary): the best token of each row, and its log-probability.
EXPORTED void run_greedy(int32_t bfloat16, int64_t rows, int64_t vocabulary, const void* scores, int64_t* tokens, float* logprobs,
                         const OpenMP* omp) {
    if (bfloat16) choose(rows, vocabulary, (const Bfloat16*)scores, tokens, logprobs, *omp);
    else choose(rows, vocabulary, (const float*)scores, tokens, logprobs, *omp);
}
