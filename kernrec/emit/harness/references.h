// Compute single elements of each op's result in double precision, following the op's definition.
#pragma once

#include "harness.h"

namespace kernrec {

inline double activated(double x, long activation) {
    if (activation == 1) return x > 0 ? x : 0;
    if (activation == 2) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    if (activation == 3) return x * 0.5 * (1 + std::tanh(x / 2));
    return x;
}

inline double matmul(const Dims& d, const std::string& layout, const Values& t, long i) {
    const long m = d.at("m"), n = d.at("n"), k = d.at("k");
    const long batch = i / (m * n), row = i / n % m, column = i % n;
    double sum = 0;
    for (long x = 0; x < k; ++x) {
        const long a = batch * m * k + (layout[0] == 'n' ? row * k + x : x * m + row);
        const long b = batch * k * n + (layout[1] == 'n' ? x * n + column : column * k + x);
        sum += t(0, a) * t(1, b);
    }
    const bool scaled = d.at("scaled"), each = d.at("scales");
    if (scaled) sum *= t(2, each ? batch * m + row : batch) * t(3, each ? batch * n + column : batch);
    if (d.at("bias")) sum += t(scaled ? 4 : 2, column);
    return activated(sum, d.at("activation"));
}

inline double matvec(const Dims& d, const std::string&, const Values& t, long i) {
    const long m = d.at("m"), k = d.at("k");
    double sum = 0;
    for (long x = 0; x < k; ++x) sum += t(0, i % m * k + x) * t(1, i / m * k + x);
    return sum;
}

inline double conv2d(const Dims& d, const std::string& layout, const Values& t, long i) {
    const long c = d.at("c"), h = d.at("h"), w = d.at("w"), k = d.at("k"), r = d.at("r"), s = d.at("s");
    const long p = d.at("p"), q = d.at("q"), depth = c / d.at("groups");
    const bool nchw = layout == "nchw";
    const long column = nchw ? i % q : i / k % q, row = nchw ? i / q % p : i / (k * q) % p;
    const long filter = nchw ? i / (p * q) % k : i % k, image = i / (k * p * q);
    const long first = filter / (k / d.at("groups")) * depth;
    double sum = 0;
    for (long channel = 0; channel < depth; ++channel)
        for (long y = 0; y < r; ++y)
            for (long x = 0; x < s; ++x) {
                const long top = row * d.at("stride") + y * d.at("dilation") - d.at("padding");
                const long left = column * d.at("stride") + x * d.at("dilation") - d.at("padding");
                if (top < 0 || top >= h || left < 0 || left >= w) continue;
                const long in = first + channel;
                sum += nchw ? t(0, ((image * c + in) * h + top) * w + left) * t(1, ((filter * depth + channel) * r + y) * s + x)
                            : t(0, ((image * h + top) * w + left) * c + in) * t(1, ((filter * r + y) * s + x) * depth + channel);
            }
    return sum;
}

inline double attention(const Dims& d, const std::string& layout, const Values& t, long i) {
    const long heads = d.at("heads"), kv_heads = d.at("kv_heads"), queries = d.at("queries"), keys = d.at("keys");
    const long size = d.at("head_dim");
    const bool bhsd = layout == "bhsd";
    const long element = i % size, batch = i / (size * heads * queries);
    const long query = bhsd ? i / size % queries : i / (size * heads) % queries;
    const long head = bhsd ? i / (size * queries) % heads : i / size % heads;
    const long shared = head / (heads / kv_heads);
    const long seen = d.at("causal") ? keys - queries + query + 1 : keys;
    const auto place = [&](long all, long tokens, long which, long token) {
        return (bhsd ? (batch * all + which) * tokens + token : (batch * tokens + token) * all + which) * size;
    };
    const bool scaled = d.at("scaled");
    const long scale = d.at("scales") ? batch * kv_heads + shared : 0;
    const double of_scores = scaled ? t(3, scale) * t(4, scale) : 1, of_values = scaled ? t(5, scale) : 1;
    std::vector<double> scores(static_cast<size_t>(seen));
    double most = -INFINITY;
    for (long key = 0; key < seen; ++key) {
        double score = 0;
        for (long x = 0; x < size; ++x)
            score += t(0, place(heads, queries, head, query) + x) * t(1, place(kv_heads, keys, shared, key) + x);
        scores[static_cast<size_t>(key)] = score * of_scores / std::sqrt(static_cast<double>(size));
        most = std::max(most, scores[static_cast<size_t>(key)]);
    }
    double sum = 0, total = 0;
    for (long key = 0; key < seen; ++key) {
        const double weight = std::exp(scores[static_cast<size_t>(key)] - most);
        total += weight;
        sum += weight * t(2, place(kv_heads, keys, shared, key) + element);
    }
    return sum * of_values / total;
}

inline double softmax(const Dims& d, const std::string&, const Values& t, long i) {
    const long columns = d.at("columns"), first = i / columns * columns;
    double most = -INFINITY, total = 0;
    for (long x = 0; x < columns; ++x) most = std::max(most, t(0, first + x));
    for (long x = 0; x < columns; ++x) total += std::exp(t(0, first + x) - most);
    return std::exp(t(0, i) - most) / total;
}

inline double layernorm(const Dims& d, const std::string&, const Values& t, long i) {
    const long columns = d.at("columns"), first = i / columns * columns;
    double mean = 0, variance = 0;
    for (long x = 0; x < columns; ++x) mean += t(0, first + x);
    mean /= static_cast<double>(columns);
    for (long x = 0; x < columns; ++x) variance += std::pow(t(0, first + x) - mean, 2);
    variance /= static_cast<double>(columns);
    return (t(0, i) - mean) / std::sqrt(variance + 1e-5) * t(1, i - first) + t(2, i - first);
}

inline double rmsnorm(const Dims& d, const std::string&, const Values& t, long i) {
    const long columns = d.at("columns"), first = i / columns * columns;
    double squares = 0;
    for (long x = 0; x < columns; ++x) squares += std::pow(t(0, first + x), 2);
    return t(0, i) / std::sqrt(squares / static_cast<double>(columns) + 1e-5) * t(1, i - first);
}

inline double reduce(const Dims& d, const std::string&, const Values& t, long i) {
    double sum = 0;
    for (long x = 0; x < d.at("columns"); ++x) sum += t(0, i * d.at("columns") + x);
    return sum;
}

inline double transpose(const Dims& d, const std::string&, const Values& t, long i) {
    return t(0, i % d.at("rows") * d.at("columns") + i / d.at("rows"));
}

inline double elementwise(const Dims&, const std::string&, const Values& t, long i) {
    return std::max(t(0, 0) * t(1, i) + t(2, i), 0.0);
}

}  // namespace kernrec
