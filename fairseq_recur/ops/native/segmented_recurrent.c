/* Segmented recurrent attention on a CPU (Long et al. 2023), forward and backward.

   A row is one head of one sentence. For each row, with segments i of s keys and values:

       O_S[t] = softmax(scale Q_t K_i^T) V_i                       (eq. 6)
       x_i    = (sum_j X_j - X_i),  X_i = K_i^T (V_i W^T)          (eq. 16, W folded into V)
       mem    = leak mem + x_i;  fired = relu(mem - thr);  mem = mem - thr [fired > 0]
       R[t]   = Q_t fired_i                                        (eq. 13 without its divisors)

   One thread processes a row, segment by segment, so that the data stay in the caches. The
   backward pass stores intermediate results in the output buffers of the row's gradients:
   V_i W^T in the gradient of V_i, and the memory in the gradient of K_i. If the memory does not
   fit there (s < D), it goes to scratch.

   `real` is float, or double with -DDOUBLE. All matrices are contiguous and row-major. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef DOUBLE
typedef double real;
typedef int64_t bits;
#define EXPONENT_BIAS 1023
#define MANTISSA 52
#define LOWEST -708.0
#define TERMS 14
#else
typedef float real;
typedef int32_t bits;
#define EXPONENT_BIAS 127
#define MANTISSA 23
#define LOWEST -87.0f
#define TERMS 8
#endif

/* The widest vectors, and the tile of results kept in registers: ROWS x (COLUMNS vectors). */
#if defined(__AVX512F__)
#define BYTES 64
#define ROWS 4
#define COLUMNS 4
#elif defined(__AVX__)
#define BYTES 32
#define ROWS 4
#define COLUMNS 2
#else
#define BYTES 16
#define ROWS 4
#define COLUMNS 2
#endif
#define LANES ((int64_t)(BYTES / sizeof(real)))
#define CHUNK 64 /* queries of a segment that are processed together */

typedef real vector __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
#define INLINE static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")

/* Arguments of both passes; segmented_recurrent.py declares the same struct. */
typedef struct {
    int64_t rows, heads, segments, steps, size, room, width, rest, local_too; /* 0: only R */
    double scale, leak, threshold, kept_scale;
    const real *queries; /* (R, N, n, D) */
    const real *keys, *values; /* (R, M, s, D) */
    const real *weight; /* W (D, D) */
    const real *mask; /* (B, N, s), added to the scores, or NULL */
    const uint8_t *kept; /* (R, N, n, s), 1 for weights that dropout keeps, or NULL */
    real *scratch; /* (threads, scratch_size) */
    int64_t threads, scratch_size;
    /* forward */
    real *local, *recurrent; /* (R, N, n, D) */
    real *squares; /* (R, D), sums of K^2 over the positions */
    /* backward */
    const real *grad_local, *grad_recurrent; /* (R, N, n, D), of O_S and O_R */
    const real *unit; /* (R, D): O_R = unit R */
    const real *along_keys; /* (R, D): d unit / d K = along_keys K unit, or NULL: unit is constant */
    real *grad_queries, *grad_keys, *grad_values;
    real *grad_weight; /* (threads, D, D) */
    real *grad_leak; /* (threads) */
    int64_t sum_along; /* nonzero: along_keys applies to the sum over all channels */
} Job;

/* ---- products */

INLINE void tile(const int rows, const int columns, int64_t inner, const real *a, int64_t a_row,
                 int64_t a_inner, const real *b, int64_t b_row, real *c, int64_t c_row, int add)
{
    vector sums[ROWS][COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            sums[i][j] = add ? *(const vector *)(c + i * c_row + j * LANES) : (vector){0};
    for (int64_t k = 0; k < inner; k++)
        for (int j = 0; j < columns; j++) {
            vector right = *(const vector *)(b + k * b_row + j * LANES);
            for (int i = 0; i < rows; i++)
                sums[i][j] += a[i * a_row + k * a_inner] * right;
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            *(vector *)(c + i * c_row + j * LANES) = sums[i][j];
}

/* C (m, n) = A (m, k) B (k, n), or with *add* C += A B. A may have any strides, so it may be
   transposed. The rows of B and C must be contiguous, and n a multiple of LANES. */
static void product(int64_t m, int64_t n, int64_t inner, const real *a, int64_t a_row,
                    int64_t a_inner, const real *b, int64_t b_row, real *c, int64_t c_row, int add)
{
    int64_t j = 0, i;
    for (; j + COLUMNS * LANES <= n; j += COLUMNS * LANES) {
        for (i = 0; i + ROWS <= m; i += ROWS)
            tile(ROWS, COLUMNS, inner, a + i * a_row, a_row, a_inner, b + j, b_row,
                 c + i * c_row + j, c_row, add);
        for (; i < m; i++)
            tile(1, COLUMNS, inner, a + i * a_row, a_row, a_inner, b + j, b_row,
                 c + i * c_row + j, c_row, add);
    }
    for (; j < n; j += LANES) {
        for (i = 0; i + ROWS <= m; i += ROWS)
            tile(ROWS, 1, inner, a + i * a_row, a_row, a_inner, b + j, b_row,
                 c + i * c_row + j, c_row, add);
        for (; i < m; i++)
            tile(1, 1, inner, a + i * a_row, a_row, a_inner, b + j, b_row, c + i * c_row + j,
                 c_row, add);
    }
}

/* out (d, padded) = factor x^T for x (count, d), padded with zeros on the right. */
static void transposed(const real *x, int64_t count, int64_t d, int64_t padded, real factor,
                       real *out)
{
    memset(out, 0, sizeof(real) * d * padded);
    for (int64_t t = 0; t < count; t++)
        for (int64_t j = 0; j < d; j++) out[j * padded + t] = factor * x[t * d + j];
}

/* ---- the softmax within a segment; its matrices are (s, padded), one column per query */

/* exp(x) = 2^k times the Taylor polynomial of the remainder; 0 below the smallest normal number.
   Not a number stays one. */
INLINE real exponential(real x)
{
    static const real inverse[] = {1.0, 1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 1.0 / 7,
                                   1.0 / 8, 1.0 / 9, 1.0 / 10, 1.0 / 11, 1.0 / 12, 1.0 / 13};
    real within = x > (real)LOWEST ? x : (real)LOWEST;
    bits k = (bits)(within * (real)1.4426950408889634 - (real)0.5);
    /* ln 2 in two parts; the first has few digits, so that k times it is exact */
    real r = within - k * (real)0.693145751953125;
    r -= k * (real)1.42860682030941723212e-6;
    real sum = 1;
#pragma GCC unroll 14
    for (int n = TERMS - 1; n > 0; n--) sum = 1 + r * sum * inverse[n];
    union { bits i; real f; } power = {.i = (k + EXPONENT_BIAS) << MANTISSA};
    return x < (real)LOWEST ? 0 : x != x ? x : sum * power.f;
}

typedef struct {
    const Job *job;
    int64_t row, step, first, count, padded; /* the queries of this block */
    const real *queries, *keys, *values;
} Block;

static Block block(const Job *job, int64_t row, int64_t step, int64_t first)
{
    int64_t count = job->room - first < CHUNK ? job->room - first : CHUNK;
    int64_t of_query = ((row * job->steps + step) * job->room + first) * job->width;
    int64_t of_key = (row * job->segments + step) * job->size * job->width;
    return (Block){job, row, step, first, count, (count + LANES - 1) / LANES * LANES,
                   job->queries + of_query, job->keys + of_key, job->values + of_key};
}

/* A = softmax(scale K Q^T) over the keys. *spare* has room for D x padded numbers. */
static void softmax(const Block *of, real *spare, real *a)
{
    const Job *job = of->job;
    int64_t d = job->width, s = job->size, p = of->padded;
    real largest[CHUNK], sums[CHUNK];
    transposed(of->queries, of->count, d, p, (real)job->scale, spare);
    product(s, p, d, of->keys, d, 1, spare, p, a, p, 0);
    const real *mask = job->mask;
    if (mask) mask += (of->row / job->heads * job->steps + of->step) * s;
    for (int64_t t = 0; t < p; t++) largest[t] = -INFINITY, sums[t] = 0;
    for (int64_t k = 0; k < s; k++) {
        real hidden = mask ? mask[k] : 0, *line = a + k * p;
        SIMD for (int64_t t = 0; t < p; t++) {
            line[t] += hidden;
            largest[t] = line[t] > largest[t] ? line[t] : largest[t];
        }
    }
    for (int64_t k = 0; k < s; k++) {
        real *line = a + k * p;
        SIMD for (int64_t t = 0; t < p; t++) {
            line[t] = exponential(line[t] - largest[t]);
            sums[t] += line[t];
        }
    }
    for (int64_t t = 0; t < p; t++) sums[t] = 1 / sums[t];
    for (int64_t k = 0; k < s; k++) {
        real *line = a + k * p;
        SIMD for (int64_t t = 0; t < p; t++) line[t] *= sums[t];
    }
}

/* Applies dropout to the weights, or to their gradient. */
static void drop(const Block *of, real *a)
{
    const Job *job = of->job;
    if (!job->kept) return;
    int64_t first = (of->row * job->steps + of->step) * job->room + of->first;
    const uint8_t *kept = job->kept + first * job->size;
    real scale = (real)job->kept_scale;
    for (int64_t t = 0; t < of->count; t++)
        for (int64_t k = 0; k < job->size; k++)
            a[k * of->padded + t] *= kept[t * job->size + k] ? scale : 0;
}

static void softmax_forward(const Block *of, real *spare, real *a, real *out)
{
    int64_t d = of->job->width;
    softmax(of, spare, a);
    drop(of, a);
    product(of->count, d, of->job->size, a, 1, of->padded, of->values, d, out, d, 0);
}

/* Adds to the gradients of Q, K_i and V_i, given *grad*, the gradient of O_S.
   *da* is (s, padded). */
static void softmax_backward(const Block *of, const real *grad, real *spare, real *a, real *da,
                             real *grad_queries, real *grad_keys, real *grad_values)
{
    const Job *job = of->job;
    int64_t d = job->width, s = job->size, p = of->padded;
    real sums[CHUNK] = {0}, scale = (real)job->scale;
    softmax(of, spare, a);
    transposed(grad, of->count, d, p, 1, spare);
    product(s, p, d, of->values, d, 1, spare, p, da, p, 0);
    drop(of, da);
    for (int64_t k = 0; k < s; k++)
        SIMD for (int64_t t = 0; t < p; t++) sums[t] += a[k * p + t] * da[k * p + t];
    for (int64_t k = 0; k < s; k++)
        SIMD for (int64_t t = 0; t < p; t++)
            da[k * p + t] = scale * a[k * p + t] * (da[k * p + t] - sums[t]);
    drop(of, a);
    product(of->count, d, s, da, 1, p, of->keys, d, grad_queries, d, 1);
    product(s, d, of->count, da, p, 1, of->queries, d, grad_keys, d, 1);
    product(s, d, of->count, a, p, 1, grad, d, grad_values, d, 1);
}

/* ---- the scan */

/* Writes X_i to *out* (D, D) and V_i W^T to *folded* (s, D), and adds X_i to *whole*. */
static void input(const Job *job, const real *keys, const real *values, const real *weight_t,
                  real *folded, real *out, real *whole)
{
    int64_t d = job->width, s = job->size;
    product(s, d, d, values, d, 1, weight_t, d, folded, d, 0);
    product(d, d, s, keys, 1, d, folded, d, out, d, 0);
    SIMD for (int64_t j = 0; j < d * d; j++) whole[j] += out[j];
}

/* Replaces X_i in *state* by the memory before its reset, and *memory* by the memory after it.
   Writes *fired* unless it is NULL. */
static void neuron(const Job *job, const real *whole, real *state, real *memory, real *fired)
{
    int64_t count = job->width * job->width;
    real leak = (real)job->leak, threshold = (real)job->threshold;
    real all = job->rest ? 1 : 0, own = job->rest ? -1 : 1;
    SIMD for (int64_t j = 0; j < count; j++) {
        real mem = leak * memory[j] + (all * whole[j] + own * state[j]);
        real over = mem - threshold;
        state[j] = mem;
        memory[j] = over > 0 ? over : mem;
        if (fired) fired[j] = over <= 0 ? 0 : over; /* not a number stays one */
    }
}

static real *take(real **from, int64_t count)
{
    real *space = *from;
    *from += (count + LANES - 1) / LANES * LANES;
    return space;
}

static void forward_row(const Job *job, int64_t row, const real *weight_t, real *scratch)
{
    int64_t d = job->width, s = job->size, m = job->segments;
    real *whole = take(&scratch, d * d), *memory = take(&scratch, d * d);
    real *fired = take(&scratch, d * d), *folded = take(&scratch, s * d);
    real *spare = take(&scratch, d * CHUNK), *a = take(&scratch, s * CHUNK);
    real *states = take(&scratch, m * d * d), *squares = job->squares + row * d;
    memset(whole, 0, sizeof(real) * d * d);
    memset(memory, 0, sizeof(real) * d * d);
    memset(squares, 0, sizeof(real) * d);
    for (int64_t i = 0; i < m; i++) {
        const real *keys = job->keys + (row * m + i) * s * d;
        input(job, keys, job->values + (row * m + i) * s * d, weight_t, folded,
              states + i * d * d, whole);
        for (int64_t k = 0; k < s; k++)
            SIMD for (int64_t j = 0; j < d; j++) squares[j] += keys[k * d + j] * keys[k * d + j];
    }
    for (int64_t i = 0; i < job->steps; i++) {
        int64_t at = (row * job->steps + i) * job->room * d;
        neuron(job, whole, states + i * d * d, memory, fired);
        product(job->room, d, d, job->queries + at, d, 1, fired, d, job->recurrent + at, d, 0);
        for (int64_t first = 0; job->local_too && first < job->room; first += CHUNK) {
            Block of = block(job, row, i, first);
            softmax_forward(&of, spare, a, job->local + at + first * d);
        }
    }
}

typedef struct {
    real *whole, *memory, *fired, *fresh, *along, *grad, *spare, *grad_t, *a, *da;
    real *states;
    int64_t stride; /* from one segment's state to the next */
} Space;

static Space spaces(const Job *job, int64_t row, real *scratch)
{
    int64_t d = job->width, s = job->size, m = job->segments;
    Space x;
    x.whole = take(&scratch, d * d), x.memory = take(&scratch, d * d);
    x.fired = take(&scratch, d * d), x.fresh = take(&scratch, d * d);
    x.along = take(&scratch, d), x.grad = take(&scratch, (s > CHUNK ? s : CHUNK) * d);
    x.spare = take(&scratch, d * CHUNK), x.grad_t = take(&scratch, d * CHUNK);
    x.a = take(&scratch, s * CHUNK), x.da = take(&scratch, s * CHUNK);
    x.stride = (s < d ? d : s) * d;
    x.states = s < d ? scratch : job->grad_keys + row * m * s * d;
    return x;
}

/* Writes the gradient of *fired* to *fresh*, and the gradient of Q through the neurons. */
static void read_backward(const Job *job, int64_t row, int64_t step, const Space *x)
{
    int64_t d = job->width, at = (row * job->steps + step) * job->room * d;
    const real *unit = job->unit + row * d;
    for (int64_t first = 0; first < job->room; first += CHUNK) {
        Block of = block(job, row, step, first);
        const real *grad = job->grad_recurrent + at + first * d;
        for (int64_t t = 0; t < of.count; t++)
            for (int64_t j = 0; j < d; j++) x->grad[t * d + j] = grad[t * d + j] * unit[j];
        product(d, d, of.count, of.queries, 1, d, x->grad, d, x->fresh, d, first > 0);
        transposed(x->grad, of.count, d, of.padded, 1, x->grad_t);
        product(d, of.padded, d, x->fired, d, 1, x->grad_t, of.padded, x->spare, of.padded, 0);
        real *out = job->grad_queries + at + first * d;
        for (int64_t t = 0; t < of.count; t++)
            for (int64_t j = 0; j < d; j++) out[t * d + j] = x->spare[j * of.padded + t];
    }
}

/* One step back through the neurons. Replaces the memory by dx_i.
   Returns the gradient of the leak. */
static real neuron_backward(const Job *job, int64_t step, const Space *x)
{
    int64_t d = job->width;
    real leak = (real)job->leak, threshold = (real)job->threshold, decay = 0;
    real *state = x->states + step * x->stride, *carried = x->memory;
    for (int64_t i = 0; i < d; i++) {
        real of_row = 0;
        _Pragma("omp simd reduction(+ : of_row)") for (int64_t j = 0; j < d; j++) {
            int64_t at = i * d + j;
            real over = x->fired[at], fresh = over <= 0 ? 0 : x->fresh[at];
            real reset = state[at] - (over > 0 ? threshold : 0);
            of_row += reset * carried[at]; /* zero at the last step */
            x->along[j] += fresh * over;
            carried[at] = fresh + leak * carried[at];
            state[at] = carried[at];
            x->whole[at] += carried[at];
        }
        decay += of_row;
    }
    return decay;
}

/* Computes the gradients of K_i, V_i and W through X_i, from the gradient of X_i. */
static void input_backward(const Job *job, int64_t row, int64_t i, const Space *x,
                           const real *coefficient, real *grad_weight)
{
    int64_t d = job->width, s = job->size, at = (row * job->segments + i) * s * d;
    real *e = x->fired, *e_t = x->fresh, own = i < job->steps ? 1 : 0; /* 0: no step reads it */
    real *grad_keys = job->grad_keys + at, *grad_values = job->grad_values + at;
    const real *dx = x->states + i * x->stride, *keys = job->keys + at;
    real all = job->rest ? 1 : 0;
    own *= job->rest ? -1 : 1;
    SIMD for (int64_t j = 0; j < d * d; j++) e[j] = all * x->whole[j] + own * dx[j];
    transposed(e, d, d, d, 1, e_t);
    /* up to here, grad_values holds V_i W^T */
    product(s, d, d, grad_values, d, 1, e_t, d, grad_keys, d, 0);
    if (coefficient)
        for (int64_t k = 0; k < s; k++)
            SIMD for (int64_t j = 0; j < d; j++)
                grad_keys[k * d + j] += keys[k * d + j] * coefficient[j];
    product(s, d, d, keys, d, 1, e, d, x->grad, d, 0);
    product(d, d, s, x->grad, 1, d, job->values + at, d, grad_weight, d, 1);
    product(s, d, d, x->grad, d, 1, job->weight, d, grad_values, d, 0);
}

static void backward_row(const Job *job, int64_t row, const real *weight_t, real *scratch,
                         real *grad_weight, real *grad_leak)
{
    int64_t d = job->width, s = job->size, m = job->segments;
    Space x = spaces(job, row, scratch);
    memset(x.whole, 0, sizeof(real) * d * d);
    memset(x.memory, 0, sizeof(real) * d * d);
    for (int64_t i = 0; i < m; i++) {
        int64_t at = (row * m + i) * s * d;
        input(job, job->keys + at, job->values + at, weight_t, job->grad_values + at,
              x.states + i * x.stride, x.whole);
    }
    for (int64_t i = 0; i < job->steps; i++)
        neuron(job, x.whole, x.states + i * x.stride, x.memory, NULL);
    memset(x.whole, 0, sizeof(real) * d * d); /* from here on, the sum of dx */
    memset(x.memory, 0, sizeof(real) * d * d); /* from here on, dx of the following step */
    memset(x.along, 0, sizeof(real) * d);
    for (int64_t i = job->steps - 1; i >= 0; i--) {
        const real *state = x.states + i * x.stride;
        real threshold = (real)job->threshold;
        SIMD for (int64_t j = 0; j < d * d; j++)
            x.fired[j] = state[j] <= threshold ? 0 : state[j] - threshold;
        read_backward(job, row, i, &x);
        *grad_leak += neuron_backward(job, i, &x);
    }
    const real *coefficient = NULL;
    if (job->along_keys) {
        real sum = 0;
        for (int64_t j = 0; j < d; j++) sum += x.along[j];
        for (int64_t j = 0; j < d; j++)
            x.along[j] = (job->sum_along ? sum : x.along[j]) * job->along_keys[row * d + j];
        coefficient = x.along;
    }
    for (int64_t i = m - 1; i >= 0; i--) {
        int64_t at = (row * m + i) * s * d;
        input_backward(job, row, i, &x, coefficient, grad_weight);
        if (i >= job->steps || !job->local_too) continue;
        for (int64_t first = 0; first < job->room; first += CHUNK) {
            Block of = block(job, row, i, first);
            int64_t query = of.queries - job->queries;
            softmax_backward(&of, job->grad_local + query, x.spare, x.a, x.da,
                             job->grad_queries + query, job->grad_keys + at,
                             job->grad_values + at);
        }
    }
}

/* ---- rows and threads; only the numbers of rows and threads decide which rows a thread has */

/* Returns how many numbers of scratch a thread needs. */
int64_t scratch_size(const Job *job, int64_t backward)
{
    int64_t d = job->width, s = job->size, larger = s > CHUNK ? s : CHUNK;
    int64_t states = job->segments * d * d;
    if (backward && s >= d) states = 0;
    return 5 * d * d + d + larger * d + 2 * d * CHUNK + 2 * s * CHUNK + states + 12 * LANES;
}

static void all_rows(const Job *job, int backward)
{
    int64_t d = job->width;
#ifdef _OPENMP
#pragma omp parallel for num_threads(job->threads) schedule(static, 1)
#endif
    for (int64_t thread = 0; thread < job->threads; thread++) {
        real *scratch = job->scratch + thread * job->scratch_size, *weight_t;
        weight_t = take(&scratch, d * d);
        transposed(job->weight, d, d, d, 1, weight_t);
        int64_t end = (thread + 1) * job->rows / job->threads;
        for (int64_t row = thread * job->rows / job->threads; row < end; row++)
            if (backward)
                backward_row(job, row, weight_t, scratch, job->grad_weight + thread * d * d,
                             job->grad_leak + thread);
            else
                forward_row(job, row, weight_t, scratch);
    }
}

void forward(const Job *job) { all_rows(job, 0); }
void backward(const Job *job) { all_rows(job, 1); }
